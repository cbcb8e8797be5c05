// Averages of parameters over steps, on a GPU; bit for bit what the CPU's make
// (parameter_average_cpu_kernel.h). Device memory, 16-byte aligned. Asynchronous on `stream`.
#ifndef MILEPOST_ENGINE_OPS_PARAMETER_AVERAGE_PARAMETER_AVERAGE_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPS_PARAMETER_AVERAGE_PARAMETER_AVERAGE_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/dtype/half.h"
#include "engine/kernels/cuda/flat.h"
#include "engine/kernels/cuda/stream.h"

namespace milepost::kernels::cuda {

// T: float or bf16. `weight`, `control`: in device memory; where the update is skipped nothing is
// written.
template <typename T>
absl::Status AddToAverages(const T* parameters, int64_t n, const float* weight,
                           const UpdateControl* control, float* averages, cudaStream_t stream);

absl::Status SwapAverages(int64_t n, float* parameters, float* averages, cudaStream_t stream);
absl::Status TakeAverages(int64_t n, bf16* parameters, float* averages, cudaStream_t stream);
absl::Status ReturnParameters(int64_t n, bf16* parameters, float* averages, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_PARAMETER_AVERAGE_PARAMETER_AVERAGE_CUDA_KERNEL_H_
