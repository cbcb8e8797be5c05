// Rotary positions; semantics of the CPU's (rope_cpu_kernel.h). Device memory, 16-byte aligned; T
// in {float, bf16, f16}.
#ifndef MILEPOST_ENGINE_OPS_ROPE_ROPE_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPS_ROPE_ROPE_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/rope/rope_contract.h"

namespace milepost::kernels::cuda {

// table [rows, head_dim] of fp32: row t is the cosines, then the sines of the position t or
// positions[t]. Angles are fp64. `positions` (nullable) is device memory.
absl::Status RopeTable(const RopeParams& params, const int32_t* positions, int64_t rows,
                       int64_t head_dim, float* table, cudaStream_t stream);

// shape.positions is device memory. out may be x. Fastest where width and head_dim / 2 are
// multiples of 8.
template <typename T>
absl::Status Rope(const RopeShape& shape, const T* x, const float* table, bool forward, T* out,
                  cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_ROPE_ROPE_CUDA_KERNEL_H_
