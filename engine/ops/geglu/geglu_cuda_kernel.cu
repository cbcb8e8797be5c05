#include "engine/ops/geglu/geglu_cuda_kernel.h"

#include "engine/kernels/cuda/gated_rows-inl.h"
#include "engine/ops/geglu/geglu_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {

template <typename T>
absl::Status GeGluForward(const T* x, int64_t rows, int64_t width, T* y, cudaStream_t stream) {
  return LaunchGatedForward<GeluGate>(x, rows, width, y, stream, "GeGluForward");
}

template <typename T>
absl::Status GeGluBackward(const T* x, const T* dy, int64_t rows, int64_t width, T* dx,
                           cudaStream_t stream) {
  return LaunchGatedBackward<GeluGate>(x, dy, rows, width, dx, stream, "GeGluBackward");
}

#define MP_INSTANTIATE(T)                                                           \
  template absl::Status GeGluForward(const T*, int64_t, int64_t, T*, cudaStream_t); \
  template absl::Status GeGluBackward(const T*, const T*, int64_t, int64_t, T*, cudaStream_t)
MP_INSTANTIATE(float);
MP_INSTANTIATE(bf16);
MP_INSTANTIATE(f16);

}  // namespace milepost::kernels::cuda
