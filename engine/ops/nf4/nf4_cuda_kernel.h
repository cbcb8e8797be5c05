// Reading weights of 4 bits (engine/dtype/nf4.h) on the device. All pointers are device memory.
#ifndef MILEPOST_ENGINE_OPS_NF4_NF4_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPS_NF4_NF4_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/stream.h"

namespace milepost::kernels::cuda {

// T: float, bf16 or f16: the CPU's bits. Both pointers are 16-byte aligned.
template <typename T>
absl::Status UnpackNf4(const uint8_t* packed, int64_t elements, T* out, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_NF4_NF4_CUDA_KERNEL_H_
