// Operands for timing matrix products: constants would draw less power than real numbers do, and so
// flatter the device and rank its algorithms wrongly.
//
//   MP_RETURN_IF_ERROR(FillWithNoise(DType::kBf16, bytes, on_device));
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_NOISE_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_NOISE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/dtype/half.h"

namespace milepost::kernels::cuda {

// Numbers of [-1, 1) in `bytes` of the current device's memory, the same in each call: a piece of
// 64 KiB, over and over. Blocks, for no other work of the device. INTERNAL where a copy fails.
absl::Status FillWithNoise(DType type, int64_t bytes, void* data);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_NOISE_H_
