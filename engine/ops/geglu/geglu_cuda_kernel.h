// GeGLU on a GPU; semantics of the CPU's (geglu_cpu_kernel.h). Device memory, 16-byte aligned; T
// in {float, bf16, f16}. Asynchronous on `stream`.
#ifndef MILEPOST_ENGINE_OPS_GEGLU_GEGLU_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPS_GEGLU_GEGLU_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/stream.h"

namespace milepost::kernels::cuda {

// x [rows, 2 width]: gate, then up; y [rows, width] = gelu(gate) up. y may not alias x; dx may be
// x.
template <typename T>
absl::Status GeGluForward(const T* x, int64_t rows, int64_t width, T* y, cudaStream_t stream);
template <typename T>
absl::Status GeGluBackward(const T* x, const T* dy, int64_t rows, int64_t width, T* dx,
                           cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_GEGLU_GEGLU_CUDA_KERNEL_H_
