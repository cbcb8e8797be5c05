// AdamW over a flat shard, on a GPU (kernels/cuda/flat_update.h): bit for bit what the CPU's makes.
#ifndef MILEPOST_ENGINE_OPTIM_ADAMW_ADAMW_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPTIM_ADAMW_ADAMW_CUDA_KERNEL_H_

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/flat_update.h"
#include "engine/optim/adamw/adamw_contract.h"

namespace milepost::kernels::cuda {

inline double BiasCorrection(float beta, int64_t step) {
  return 1.0 - std::pow(double{beta}, static_cast<double>(step));
}

// The two halves of the CPU's parameters; keys and element_offset are left to the caller.
inline StepFactors StepFactorsOf(const AdamWParams& a) {
  return {.beta1 = a.beta1,
          .beta2 = a.beta2,
          .root1 = static_cast<float>(1.0 / BiasCorrection(a.beta1, a.step)),
          .root2 = static_cast<float>(1.0 / std::sqrt(BiasCorrection(a.beta2, a.step))),
          .epsilon = a.epsilon};
}
inline SegmentFactors SegmentFactorsOf(const AdamWParams& a) {
  return {.rate = static_cast<float>(a.learning_rate / BiasCorrection(a.beta1, a.step)),
          .shrink = static_cast<float>(1.0 - double{a.learning_rate} * a.weight_decay)};
}
template <typename T, typename S, typename P, typename G>
absl::Status AdamW(const FlatUpdate<T, S, P, G>& update, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPTIM_ADAMW_ADAMW_CUDA_KERNEL_H_
