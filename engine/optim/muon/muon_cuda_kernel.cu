#include "engine/optim/muon/muon_cuda_kernel.h"

#include "engine/kernels/cuda/elementwise_kernels.h"
#include "engine/kernels/cuda/launch-inl.h"
#include "engine/optim/muon/muon_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {

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

template absl::Status MuonApply(const FlatUpdate<float>&, cudaStream_t);
template absl::Status MuonApply(const FlatUpdate<bf16>&, cudaStream_t);
template absl::Status MuonApply(const FlatUpdate<f16>&, cudaStream_t);

}  // namespace milepost::kernels::cuda
