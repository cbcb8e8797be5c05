// Sgd over a flat shard, on a GPU (kernels/cuda/flat_update.h): bit for bit what the CPU's makes.
#ifndef MILEPOST_ENGINE_OPTIM_SGD_SGD_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPTIM_SGD_SGD_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/flat_update.h"
#include "engine/optim/sgd/sgd_contract.h"

namespace milepost::kernels::cuda {

inline StepFactors StepFactorsOf(const SgdParams& a) { return {.momentum = a.momentum}; }
inline SegmentFactors SegmentFactorsOf(const SgdParams& a) {
  return {.rate = a.learning_rate, .decay = a.weight_decay};
}
template <typename T, typename S, typename P, typename G>
absl::Status Sgd(const FlatUpdate<T, S, P, G>& update, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPTIM_SGD_SGD_CUDA_KERNEL_H_
