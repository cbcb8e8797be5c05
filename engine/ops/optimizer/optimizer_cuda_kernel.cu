#include "engine/ops/optimizer/optimizer_cuda_kernel.h"

#include "engine/kernels/cuda/launch-inl.h"
#include "engine/ops/optimizer/optimizer_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {

template <typename T, typename S, typename P, typename G>
absl::Status AdamW(const FlatUpdate<T, S, P, G>& update, cudaStream_t stream) {
  const FlatUpdateKernel<AdamWRule, T, S, P, G> kernel = {update};
  return Launch(kernel, kernel.grid(), stream, "AdamW");
}
template <typename T, typename S, typename P, typename G>
absl::Status Sgd(const FlatUpdate<T, S, P, G>& update, cudaStream_t stream) {
  const FlatUpdateKernel<SgdRule, T, S, P, G> kernel = {update};
  return Launch(kernel, kernel.grid(), stream, "Sgd");
}
template <typename T, typename S, typename P, typename G>
absl::Status Lion(const FlatUpdate<T, S, P, G>& update, cudaStream_t stream) {
  const FlatUpdateKernel<LionRule, T, S, P, G> kernel = {update};
  return Launch(kernel, kernel.grid(), stream, "Lion");
}

#define MP_INSTANTIATE(T, S, P, G)                                          \
  template absl::Status AdamW(const FlatUpdate<T, S, P, G>&, cudaStream_t); \
  template absl::Status Sgd(const FlatUpdate<T, S, P, G>&, cudaStream_t);   \
  template absl::Status Lion(const FlatUpdate<T, S, P, G>&, cudaStream_t)
MP_INSTANTIATE(float, float, float, float);
MP_INSTANTIATE(bf16, float, float, float);
MP_INSTANTIATE(f16, float, float, float);
MP_INSTANTIATE(float, bf16, float, float);
MP_INSTANTIATE(bf16, bf16, float, float);
MP_INSTANTIATE(f16, bf16, float, float);
MP_INSTANTIATE(bf16, float, bf16, float);
MP_INSTANTIATE(bf16, bf16, bf16, float);
MP_INSTANTIATE(bf16, float, float, bf16);
MP_INSTANTIATE(bf16, bf16, float, bf16);
MP_INSTANTIATE(bf16, float, bf16, bf16);
MP_INSTANTIATE(bf16, bf16, bf16, bf16);

}  // namespace milepost::kernels::cuda
