#include "engine/ops/outer_step/outer_step_cuda_kernel.h"

#include "engine/kernels/cuda/launch-inl.h"
#include "engine/ops/outer_step/outer_step_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {

absl::Status OuterUpdate(const OuterStep& step, int64_t n, float* masters, float* anchors,
                         float* momentum, cudaStream_t stream) {
  const OuterUpdateKernel kernel = {step, n, masters, anchors, momentum};
  return Launch(kernel, kernel.grid(), stream, "OuterUpdate");
}

}  // namespace milepost::kernels::cuda
