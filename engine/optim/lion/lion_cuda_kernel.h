// Lion over a flat shard, on a GPU (kernels/cuda/flat_update.h): bit for bit what the CPU's makes.
#ifndef MILEPOST_ENGINE_OPTIM_LION_LION_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPTIM_LION_LION_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/flat_update.h"
#include "engine/optim/lion/lion_contract.h"

namespace milepost::kernels::cuda {

inline StepFactors StepFactorsOf(const LionParams& a) {
  return {.beta1 = a.beta1, .beta2 = a.beta2};
}
inline SegmentFactors SegmentFactorsOf(const LionParams& a) {
  return {.rate = a.learning_rate,
          .shrink = static_cast<float>(1.0 - double{a.learning_rate} * a.weight_decay)};
}

template <typename T, typename S, typename P, typename G>
absl::Status Lion(const FlatUpdate<T, S, P, G>& update, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPTIM_LION_LION_CUDA_KERNEL_H_
