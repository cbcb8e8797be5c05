// Adan over a flat shard, on a GPU (kernels/cuda/flat_update.h): bit for bit what the CPU's makes.
#ifndef MILEPOST_ENGINE_OPTIM_ADAN_ADAN_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPTIM_ADAN_ADAN_CUDA_KERNEL_H_

#include "absl/status/status.h"
#include "engine/kernels/cuda/flat_update.h"
#include "engine/optim/adan/adan_contract.h"

namespace milepost::kernels::cuda {

// The two halves of the CPU's parameters; keys and element_offset are left to the caller.
inline StepFactors StepFactorsOf(const AdanParams& a) {
  const AdanFactors f(a);
  return {.beta1 = a.beta1,
          .beta2 = a.beta2,
          .beta3 = a.beta3,
          .root3 = f.root3,
          .second = f.second,
          .past = f.past,
          .epsilon = a.epsilon};
}
inline SegmentFactors SegmentFactorsOf(const AdanParams& a) {
  const AdanFactors f(a);
  return {.rate = f.rate, .shrink = f.shrink};
}

template <typename T, typename S, typename P, typename G>
absl::Status Adan(const FlatUpdate<T, S, P, G>& update, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPTIM_ADAN_ADAN_CUDA_KERNEL_H_
