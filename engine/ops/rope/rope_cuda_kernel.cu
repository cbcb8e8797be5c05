#include "engine/ops/rope/rope_cuda_kernel.h"

#include "engine/kernels/cuda/launch-inl.h"
#include "engine/ops/rope/rope_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {

absl::Status RopeTable(const RopeParams& params, const int32_t* positions, int64_t rows,
                       int64_t head_dim, float* table, cudaStream_t stream) {
  const RopeTableKernel kernel = {params, positions, rows, head_dim, table};
  return Launch(kernel, kernel.grid(), stream, "RopeTable");
}

template <typename T>
absl::Status Rope(const RopeShape& shape, const T* x, const float* table, bool forward, T* out,
                  cudaStream_t stream) {
  const float direction = forward ? 1.0f : -1.0f;
  if (shape.head_dim % 16 == 0 && shape.width % 8 == 0) {
    const RopeKernel<T, 8> kernel = {shape, x, table, direction, out};
    return Launch(kernel, kernel.grid(), stream, "Rope");
  }
  const RopeKernel<T, 1> kernel = {shape, x, table, direction, out};
  return Launch(kernel, kernel.grid(), stream, "Rope");
}
#define MP_INSTANTIATE(T) \
  template absl::Status Rope(const RopeShape&, const T*, const float*, bool, T*, cudaStream_t)
MP_INSTANTIATE(float);
MP_INSTANTIATE(bf16);
MP_INSTANTIATE(f16);

}  // namespace milepost::kernels::cuda
