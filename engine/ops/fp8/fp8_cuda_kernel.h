// Quantisation to 8 bits on the device, and the scalings that go with it; what each is,
// fp8_contract.h says: the same bits. All pointers are device memory.
#ifndef MILEPOST_ENGINE_OPS_FP8_FP8_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPS_FP8_FP8_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/flat.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/fp8/fp8_contract.h"

namespace milepost::kernels::cuda {

// One pass over x makes the codes, turned or not or both, and the slots. Matrices are 16-byte
// aligned; one with fewer slots than tiles is made by kAmaxSlots blocks.
template <typename Code>
absl::Status Quantize(const Stacked& x, const float* record, bool first, Code* codes, Code* codes_t,
                      float* slots, cudaStream_t stream);

// SetScale(AmaxOf(slots), record).
absl::Status CalibrateScaling(const float* slots, float* record, cudaStream_t stream);

// amaxes[t] = AmaxOf(slots + t kAmaxSlots).
absl::Status CollectAmaxes(const float* slots, int64_t tensors, float* amaxes, cudaStream_t stream);

// UpdateScaling of each record with the largest of amaxes[ranks, tensors]; nothing in a step whose
// update is skipped. `control`: device memory.
absl::Status UpdateScalings(const float* amaxes, int64_t ranks, int64_t tensors,
                            const UpdateControl* control, float* records, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_FP8_FP8_CUDA_KERNEL_H_
