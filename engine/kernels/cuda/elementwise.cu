#include "engine/kernels/cuda/elementwise.h"

#include "engine/kernels/cuda/elementwise_kernels.h"
#include "engine/kernels/cuda/launch-inl.h"

namespace milepost::kernels::cuda {
namespace {

template <typename Kernel>
absl::Status Go(const Kernel& kernel, cudaStream_t stream, const char* name) {
  return Launch(kernel, kernel.grid(), stream, name);
}

}  // namespace

template <typename From, typename To>
absl::Status Cast(const From* in, int64_t n, To* out, cudaStream_t stream) {
  return Go(MapKernel<SameFn, From, To>{{}, in, n, out}, stream, "Cast");
}
template absl::Status Cast(const float*, int64_t, float*, cudaStream_t);
template absl::Status Cast(const float*, int64_t, bf16*, cudaStream_t);
template absl::Status Cast(const float*, int64_t, f16*, cudaStream_t);
template absl::Status Cast(const bf16*, int64_t, float*, cudaStream_t);
template absl::Status Cast(const bf16*, int64_t, bf16*, cudaStream_t);
template absl::Status Cast(const bf16*, int64_t, f16*, cudaStream_t);
template absl::Status Cast(const f16*, int64_t, float*, cudaStream_t);
template absl::Status Cast(const f16*, int64_t, bf16*, cudaStream_t);
template absl::Status Cast(const f16*, int64_t, f16*, cudaStream_t);

template <typename T>
absl::Status ScaleTo(const T* x, int64_t n, float factor, T* out, cudaStream_t stream) {
  return Go(MapKernel<ScaleFn, T, T>{{factor}, x, n, out}, stream, "Scale");
}
template absl::Status ScaleTo(const float*, int64_t, float, float*, cudaStream_t);
template absl::Status ScaleTo(const bf16*, int64_t, float, bf16*, cudaStream_t);
template absl::Status ScaleTo(const f16*, int64_t, float, f16*, cudaStream_t);

absl::Status Scale(float* x, int64_t n, float factor, cudaStream_t stream) {
  return ScaleTo(x, n, factor, x, stream);
}

template <typename T>
absl::Status Accumulate(const T* x, int64_t n, float* out, cudaStream_t stream) {
  return Go(PairKernel<AddFn, float, T>{{}, out, x, n, out}, stream, "Accumulate");
}

absl::Status Fill(float* out, int64_t n, float value, cudaStream_t stream) {
  return Go(FillKernel{out, n, value}, stream, "Fill");
}

template <typename T>
absl::Status Add(const T* a, const T* b, int64_t n, T* out, cudaStream_t stream) {
  return Go(PairKernel<AddFn, T>{{}, a, b, n, out}, stream, "Add");
}

template <typename T>
absl::Status Dropout(const T* x, int64_t n, const DropoutArgs& dropout, T* y, cudaStream_t stream) {
  if (dropout.p <= 0) return x == y ? absl::OkStatus() : Cast(x, n, y, stream);
  return Go(DropoutKernel<T>{x, n, MaskOf(dropout), y}, stream, "Dropout");
}

#define MP_INSTANTIATE(T)                                                    \
  template absl::Status Accumulate(const T*, int64_t, float*, cudaStream_t); \
  template absl::Status Add(const T*, const T*, int64_t, T*, cudaStream_t);  \
  template absl::Status Dropout(const T*, int64_t, const DropoutArgs&, T*, cudaStream_t)
MP_INSTANTIATE(float);
MP_INSTANTIATE(bf16);
MP_INSTANTIATE(f16);

}  // namespace milepost::kernels::cuda
