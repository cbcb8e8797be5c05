#include "engine/ops/nf4/nf4_cuda_kernel.h"

#include "engine/kernels/cuda/launch-inl.h"
#include "engine/ops/nf4/nf4_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {

template <typename T>
absl::Status UnpackNf4(const uint8_t* packed, int64_t elements, T* out, cudaStream_t stream) {
  const UnpackNf4Kernel<T> kernel = {packed, elements, out};
  return Launch(kernel, kernel.grid(), stream, "UnpackNf4");
}
template absl::Status UnpackNf4(const uint8_t*, int64_t, float*, cudaStream_t);
template absl::Status UnpackNf4(const uint8_t*, int64_t, bf16*, cudaStream_t);
template absl::Status UnpackNf4(const uint8_t*, int64_t, f16*, cudaStream_t);

}  // namespace milepost::kernels::cuda
