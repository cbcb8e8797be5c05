#include "engine/ops/optimizer/lamb_muon_cuda_kernel.h"

#include "common/status_macros.h"
#include "engine/kernels/cuda/elementwise_kernels.h"
#include "engine/kernels/cuda/launch-inl.h"
#include "engine/ops/optimizer/lamb_muon_cuda_kernel-inl.h"

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

absl::Status MuonMomentum(const StepFactors* step, bool nesterov, const UpdateControl* control,
                          int64_t n, float* m, const float* g, float* u, cudaStream_t stream) {
  const MuonMomentumKernel kernel = {step, nesterov, control, n, m, g, u};
  return Launch(kernel, kernel.grid(), stream, "MuonMomentum");
}

absl::Status MuonNormalise(const double* sum_squares, int64_t n, float* x, cudaStream_t stream) {
  const MuonNormaliseKernel<float> kernel = {sum_squares, n, x, x};
  return Launch(kernel, kernel.grid(), stream, "MuonNormalise");
}
absl::Status MuonNormalise(const double* sum_squares, int64_t n, const float* x, bf16* out,
                           cudaStream_t stream) {
  const MuonNormaliseKernel<bf16> kernel = {sum_squares, n, x, out};
  return Launch(kernel, kernel.grid(), stream, "MuonNormalise");
}

absl::Status MuonMix(float b, float c, int64_t n, const float* x, float* y, cudaStream_t stream) {
  const PairKernel<MuonMixFn, float> kernel = {{b, c}, x, y, n, y};
  return Launch(kernel, kernel.grid(), stream, "MuonMix");
}
absl::Status MuonMix(float b, float c, int64_t n, const bf16* x, const float* y, bf16* out,
                     cudaStream_t stream) {
  const PairKernel<MuonMixFn, bf16, float> kernel = {{b, c}, x, y, n, out};
  return Launch(kernel, kernel.grid(), stream, "MuonMix");
}

template <typename T>
absl::Status MuonApply(const FlatUpdate<T>& update, cudaStream_t stream) {
  const MuonApplyKernel<T> kernel = {update};
  return Launch(kernel, kernel.grid(), stream, "MuonApply");
}

#define MP_INSTANTIATE(T)                                                             \
  template absl::Status LambApply(const FlatUpdate<T>&, const double*, cudaStream_t); \
  template absl::Status MuonApply(const FlatUpdate<T>&, cudaStream_t)
MP_INSTANTIATE(float);
MP_INSTANTIATE(bf16);
MP_INSTANTIATE(f16);

}  // namespace milepost::kernels::cuda
