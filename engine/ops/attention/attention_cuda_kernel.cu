#include "engine/ops/attention/attention_cuda_kernel.h"

#include "engine/kernels/cuda/launch-inl.h"
#include "engine/ops/attention/attention_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {

template <typename T>
absl::Status AttentionForward(const AttentionShape& shape, const T* qkv, const int32_t* documents,
                              T* out, float* lse, cudaStream_t stream) {
  return RunAttentionForward(shape, qkv, documents, out, lse, [&](const auto& kernel) {
    return Launch(kernel, kernel.grid(), stream, "AttentionForward");
  });
}

template <typename T>
absl::Status AttentionBackward(const AttentionShape& shape, const T* qkv, const int32_t* documents,
                               const T* out, const float* lse, const T* d_out, T* dqkv,
                               void* workspace, cudaStream_t stream) {
  return RunAttentionBackward(shape, qkv, documents, out, lse, d_out, dqkv,
                              static_cast<float*>(workspace), [&](const auto& kernel) {
                                return Launch(kernel, kernel.grid(), stream, "AttentionBackward");
                              });
}

#define MP_INSTANTIATE(T)                                                                     \
  template absl::Status AttentionForward(const AttentionShape&, const T*, const int32_t*, T*, \
                                         float*, cudaStream_t);                               \
  template absl::Status AttentionBackward(const AttentionShape&, const T*, const int32_t*,    \
                                          const T*, const float*, const T*, T*, void*,        \
                                          cudaStream_t)
MP_INSTANTIATE(float);
MP_INSTANTIATE(bf16);
MP_INSTANTIATE(f16);

}  // namespace milepost::kernels::cuda
