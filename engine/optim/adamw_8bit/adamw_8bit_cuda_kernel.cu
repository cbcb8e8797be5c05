#include "engine/optim/adamw_8bit/adamw_8bit_cuda_kernel.h"

#include "engine/kernels/cuda/launch-inl.h"
#include "engine/optim/adamw_8bit/adamw_8bit_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {

template <typename T, typename P, typename G>
absl::Status AdamW8Bit(const QuantizedUpdate<T, P, G>& update, cudaStream_t stream) {
  const AdamW8BitKernel<T, P, G> kernel = MakeAdamW8Bit(update);
  return Launch(kernel, kernel.grid(), stream, "AdamW8Bit");
}
template absl::Status AdamW8Bit(const QuantizedUpdate<float>&, cudaStream_t);
template absl::Status AdamW8Bit(const QuantizedUpdate<bf16>&, cudaStream_t);
template absl::Status AdamW8Bit(const QuantizedUpdate<f16>&, cudaStream_t);
template absl::Status AdamW8Bit(const QuantizedUpdate<bf16, bf16, float>&, cudaStream_t);
template absl::Status AdamW8Bit(const QuantizedUpdate<bf16, float, bf16>&, cudaStream_t);
template absl::Status AdamW8Bit(const QuantizedUpdate<bf16, bf16, bf16>&, cudaStream_t);

}  // namespace milepost::kernels::cuda
