// Linear layers of 8-bit codes on a GPU.
#ifndef MILEPOST_ENGINE_OPS_LINEAR_LINEAR_FP8_CUDA_H_
#define MILEPOST_ENGINE_OPS_LINEAR_LINEAR_FP8_CUDA_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {

std::vector<kernels::cuda::Product> Fp8LayerProducts(const plan::Program& program,
                                                     const graph::Op& op);
absl::StatusOr<runtime::BoundOp> BindFp8Layer(const runtime::CudaBinding& b);

}  // namespace milepost::ops::gpu

#endif  // MILEPOST_ENGINE_OPS_LINEAR_LINEAR_FP8_CUDA_H_
