// GELU on a GPU; semantics of the CPU's (gelu_erf_cpu_kernel.h, kernels/cpu/elementwise.h). Device
// memory, 16-byte aligned; T in {float, bf16, f16}. Asynchronous on `stream`.
#ifndef MILEPOST_ENGINE_OPS_GELU_GELU_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPS_GELU_GELU_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/stream.h"

namespace milepost::kernels::cuda {

// By the tanh form or, `exact`, by the error function. y may be x; dx may be dy or x.
template <typename T>
absl::Status GeluForward(const T* x, int64_t n, bool exact, T* y, cudaStream_t stream);
template <typename T>
absl::Status GeluBackward(const T* x, const T* dy, int64_t n, bool exact, T* dx,
                          cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_GELU_GELU_CUDA_KERNEL_H_
