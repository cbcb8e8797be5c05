#include "engine/ops/qk_norm/qk_norm_cuda_kernel.h"

#include "engine/kernels/cuda/launch-inl.h"
#include "engine/ops/qk_norm/qk_norm_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {

template <typename T>
absl::Status QkNormForward(const QkNormShape& shape, const T* qkv, const T* gamma_q,
                           const T* gamma_k, T* out, cudaStream_t stream) {
  if (shape.head_dim % 4 == 0) {
    const QkNormForwardKernel<T, 4> kernel = {shape, qkv, gamma_q, gamma_k, out};
    return Launch(kernel, kernel.grid(), stream, "QkNormForward");
  }
  const QkNormForwardKernel<T, 1> kernel = {shape, qkv, gamma_q, gamma_k, out};
  return Launch(kernel, kernel.grid(), stream, "QkNormForward");
}

template <typename T>
absl::Status QkNormBackward(const QkNormShape& shape, const QkNormBackwardArgs<T>& args,
                            void* workspace, cudaStream_t stream) {
  const auto run = [&](const auto& kernel) {
    return Launch(kernel, kernel.grid(), stream, "QkNormBackward");
  };
  auto* partials = static_cast<float*>(workspace);
  return shape.head_dim % 4 == 0 ? RunQkNormBackward<4>(shape, args, partials, run)
                                 : RunQkNormBackward<1>(shape, args, partials, run);
}

template <typename T>
absl::Status BiasGradient(const T* dy, int64_t rows, int64_t width, int64_t row_stride,
                          bool accumulate, float* db, void* workspace, cudaStream_t stream) {
  return RunBiasGradient(
      dy, rows, width, row_stride, accumulate, db, static_cast<float*>(workspace),
      [&](const auto& kernel) { return Launch(kernel, kernel.grid(), stream, "BiasGradient"); });
}

#define MP_INSTANTIATE(T)                                                                       \
  template absl::Status QkNormForward(const QkNormShape&, const T*, const T*, const T*, T*,     \
                                      cudaStream_t);                                            \
  template absl::Status QkNormBackward(const QkNormShape&, const QkNormBackwardArgs<T>&, void*, \
                                       cudaStream_t);                                           \
  template absl::Status BiasGradient(const T*, int64_t, int64_t, int64_t, bool, float*, void*,  \
                                     cudaStream_t)
MP_INSTANTIATE(float);
MP_INSTANTIATE(bf16);
MP_INSTANTIATE(f16);

}  // namespace milepost::kernels::cuda
