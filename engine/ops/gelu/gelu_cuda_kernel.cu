#include "engine/ops/gelu/gelu_cuda_kernel.h"

#include "engine/kernels/cuda/launch-inl.h"
#include "engine/ops/gelu/gelu_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {
namespace {

template <typename Kernel>
absl::Status GoGelu(const Kernel& kernel, cudaStream_t stream, const char* name) {
  return Launch(kernel, kernel.grid(), stream, name);
}

}  // namespace

template <typename T>
absl::Status GeluForward(const T* x, int64_t n, bool exact, T* y, cudaStream_t stream) {
  if (exact) return GoGelu(MapKernel<GeluErfFn, T, T>{{}, x, n, y}, stream, "GeluForward");
  return GoGelu(MapKernel<GeluFn, T, T>{{}, x, n, y}, stream, "GeluForward");
}

template <typename T>
absl::Status GeluBackward(const T* x, const T* dy, int64_t n, bool exact, T* dx,
                          cudaStream_t stream) {
  if (exact) {
    return GoGelu(PairKernel<GeluErfBackwardFn, T>{{}, x, dy, n, dx}, stream, "GeluBackward");
  }
  return GoGelu(PairKernel<GeluBackwardFn, T>{{}, x, dy, n, dx}, stream, "GeluBackward");
}

#define MP_INSTANTIATE(T)                                                       \
  template absl::Status GeluForward(const T*, int64_t, bool, T*, cudaStream_t); \
  template absl::Status GeluBackward(const T*, const T*, int64_t, bool, T*, cudaStream_t)
MP_INSTANTIATE(float);
MP_INSTANTIATE(bf16);
MP_INSTANTIATE(f16);

}  // namespace milepost::kernels::cuda
