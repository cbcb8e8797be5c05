// Internal to cuda_backend and to the rooms of ops on images.
#ifndef MILEPOST_ENGINE_RUNTIME_CUDA_BACKEND_CUDA_IMAGES_H_
#define MILEPOST_ENGINE_RUNTIME_CUDA_BACKEND_CUDA_IMAGES_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/runtime/cuda_backend/cuda_op.h"
#include "engine/runtime/image_rows.h"

namespace milepost::runtime {

inline absl::StatusOr<BoundOp> NoGpuKernel(const CudaBinding& b) {
  return absl::UnimplementedError(absl::StrCat(graph::Name(b.planned.op.kind),
                                               ": the GPU has no kernel for ",
                                               graph::Name(b.plan.options.compute_dtype)));
}

}  // namespace milepost::runtime

// Images have no kernels on halves: a spec that asks for them is refused.
#define MP_BIND_F32_OR_BF16_ON_GPU(binder, b)                         \
  ((b).plan.options.compute_dtype == ::milepost::graph::DType::kBF16  \
       ? binder<::milepost::kernels::bf16>(b)                         \
   : (b).plan.options.compute_dtype == ::milepost::graph::DType::kF32 \
       ? binder<float>(b)                                             \
       : ::milepost::runtime::NoGpuKernel(b))

#endif  // MILEPOST_ENGINE_RUNTIME_CUDA_BACKEND_CUDA_IMAGES_H_
