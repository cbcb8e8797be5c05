// Pooling of images, and images into numbers; bit for bit what the CPU's (pooling_cpu_kernel.h)
// make, but for the order of an average's sum. T in {float, bf16}; device memory, 16-byte aligned.
#ifndef MILEPOST_ENGINE_OPS_POOLING_POOLING_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPS_POOLING_POOLING_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/pooling/pooling_contract.h"

namespace milepost::kernels::cuda {

template <typename T>
absl::Status MaxPoolForward(const PoolSpec& spec, const T* x, T* y, uint8_t* winners,
                            cudaStream_t stream);
// dy2: nullable, added to dy.
template <typename T>
absl::Status MaxPoolBackward(const PoolSpec& spec, const uint8_t* winners, const T* dy,
                             const T* dy2, T* dx, cudaStream_t stream);

// y[batch, channels] = mean of x[batch, pixels, channels], and back.
template <typename T>
absl::Status AveragePoolForward(const T* x, int64_t batch, int64_t pixels, int64_t channels, T* y,
                                cudaStream_t stream);
template <typename T>
absl::Status AveragePoolBackward(const T* dy, int64_t batch, int64_t pixels, int64_t channels,
                                 T* dx, cudaStream_t stream);

// y[p, c] = table[256 c + x[p, c]].
template <typename T>
absl::Status LookUpChannels(const uint8_t* x, int64_t pixels, int64_t channels, const T* table,
                            T* y, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_POOLING_POOLING_CUDA_KERNEL_H_
