#include "engine/ops/parameter_average/parameter_average_cuda_kernel.h"

#include "engine/kernels/cuda/launch-inl.h"
#include "engine/ops/parameter_average/parameter_average_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {
namespace {

template <bool kBack>
absl::Status ExchangeBits(int64_t n, bf16* parameters, float* averages, cudaStream_t stream) {
  const ExchangeBitsKernel<kBack> kernel = {n, parameters, reinterpret_cast<uint32_t*>(averages)};
  return Launch(kernel, kernel.grid(), stream, "ExchangeBits");
}

}  // namespace

template <typename T>
absl::Status AddToAverages(const T* parameters, int64_t n, const float* weight,
                           const UpdateControl* control, float* averages, cudaStream_t stream) {
  const AverageKernel<T> kernel = {parameters, n, weight, control, averages};
  return Launch(kernel, kernel.grid(), stream, "AddToAverages");
}
template absl::Status AddToAverages(const float*, int64_t, const float*, const UpdateControl*,
                                    float*, cudaStream_t);
template absl::Status AddToAverages(const bf16*, int64_t, const float*, const UpdateControl*,
                                    float*, cudaStream_t);

absl::Status SwapAverages(int64_t n, float* parameters, float* averages, cudaStream_t stream) {
  const SwapAveragesKernel kernel = {n, parameters, averages};
  return Launch(kernel, kernel.grid(), stream, "SwapAverages");
}

absl::Status TakeAverages(int64_t n, bf16* parameters, float* averages, cudaStream_t stream) {
  return ExchangeBits<false>(n, parameters, averages, stream);
}
absl::Status ReturnParameters(int64_t n, bf16* parameters, float* averages, cudaStream_t stream) {
  return ExchangeBits<true>(n, parameters, averages, stream);
}

}  // namespace milepost::kernels::cuda
