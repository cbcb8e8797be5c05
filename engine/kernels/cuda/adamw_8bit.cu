#include "engine/kernels/cuda/adamw_8bit.h"

#include "engine/kernels/cuda/adamw_8bit_kernels.h"
#include "engine/kernels/cuda/launch-inl.h"

namespace milepost::kernels::cuda {

template <typename T>
absl::Status AdamW8Bit(const QuantizedUpdate<T>& update, cudaStream_t stream) {
  const AdamW8BitKernel<T> kernel = MakeAdamW8Bit(update);
  return Launch(kernel, kernel.grid(), stream, "AdamW8Bit");
}
template absl::Status AdamW8Bit(const QuantizedUpdate<float>&, cudaStream_t);
template absl::Status AdamW8Bit(const QuantizedUpdate<bf16>&, cudaStream_t);
template absl::Status AdamW8Bit(const QuantizedUpdate<f16>&, cudaStream_t);

}  // namespace milepost::kernels::cuda
