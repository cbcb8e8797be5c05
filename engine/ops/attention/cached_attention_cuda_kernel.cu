#include "engine/ops/attention/cached_attention_cuda_kernel.h"

#include "engine/kernels/cuda/launch-inl.h"
#include "engine/ops/attention/cached_attention_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {

template <typename T>
absl::Status CachedAttention(const CachedAttentionArgs<T>& args, cudaStream_t stream) {
  const CachedAttentionKernel<T> kernel = MakeCachedAttention(args);
  return Launch(kernel, kernel.grid(), stream, "CachedAttention");
}
template absl::Status CachedAttention(const CachedAttentionArgs<float>&, cudaStream_t);
template absl::Status CachedAttention(const CachedAttentionArgs<bf16>&, cudaStream_t);
template absl::Status CachedAttention(const CachedAttentionArgs<f16>&, cudaStream_t);

}  // namespace milepost::kernels::cuda
