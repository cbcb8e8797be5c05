#include "engine/optim/lamb/lamb_cuda_kernel.h"

#include "common/status_macros.h"
#include "engine/kernels/cuda/launch-inl.h"
#include "engine/optim/lamb/lamb_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {

absl::Status LambMoments(const FlatUpdate<float>& update, const FlatRange* ranges,
                         int64_t tensor_count, double* norms, void* workspace,
                         cudaStream_t stream) {
  auto* sums = static_cast<double*>(workspace);
  const LambMomentsKernel moments = {update, sums};
  MP_RETURN_IF_ERROR(Launch(moments, moments.grid(), stream, "LambMoments"));
  const LambNormsKernel totals = {update.control, ranges, tensor_count, sums, norms};
  return Launch(totals, totals.grid(), stream, "LambMoments' norms");
}

template <typename T>
absl::Status LambApply(const FlatUpdate<T>& update, const double* norms, cudaStream_t stream) {
  const LambApplyKernel<T> kernel = {update, norms};
  return Launch(kernel, kernel.grid(), stream, "LambApply");
}

template absl::Status LambApply(const FlatUpdate<float>&, const double*, cudaStream_t);
template absl::Status LambApply(const FlatUpdate<bf16>&, const double*, cudaStream_t);
template absl::Status LambApply(const FlatUpdate<f16>&, const double*, cudaStream_t);

}  // namespace milepost::kernels::cuda
