// Outer steps of islands, on a GPU: what the CPU's do (outer_step_cpu_kernel.h). Device memory,
// 16-byte aligned. Asynchronous on `stream`; errors are those of the launch.
#ifndef MILEPOST_ENGINE_OPS_OUTER_STEP_OUTER_STEP_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPS_OUTER_STEP_OUTER_STEP_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/outer_step/outer_step_contract.h"

namespace milepost::kernels::cuda {

absl::Status OuterUpdate(const OuterStep& step, int64_t n, float* masters, float* anchors,
                         float* momentum, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_OUTER_STEP_OUTER_STEP_CUDA_KERNEL_H_
