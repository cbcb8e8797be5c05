// Elementwise kernels, T in {float, bf16, f16}; semantics of the CPU's (cpu/elementwise.h and its
// neighbours). Pointers are device memory and 16-byte aligned; n is a number of elements, of any
// size. Asynchronous on `stream`; errors are those of the launch.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_ELEMENTWISE_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_ELEMENTWISE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/random.h"
#include "engine/kernels/cuda/stream.h"

namespace milepost::kernels::cuda {

// out = in, rounded to the nearest. Of any two types; out may be in where the types are one.
template <typename From, typename To>
absl::Status Cast(const From* in, int64_t n, To* out, cudaStream_t stream);

// out = value.
absl::Status Fill(float* out, int64_t n, float value, cudaStream_t stream);
// x *= factor; out = factor * x.
absl::Status Scale(float* x, int64_t n, float factor, cudaStream_t stream);
template <typename T>
absl::Status ScaleTo(const T* x, int64_t n, float factor, T* out, cudaStream_t stream);
// out += x.
template <typename T>
absl::Status Accumulate(const T* x, int64_t n, float* out, cudaStream_t stream);
// out = a + b; may be either.
template <typename T>
absl::Status Add(const T* a, const T* b, int64_t n, T* out, cudaStream_t stream);

// y = x times the mask's multipliers; also its own backward. y may be x.
template <typename T>
absl::Status Dropout(const T* x, int64_t n, const DropoutArgs& dropout, T* y, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_ELEMENTWISE_H_
