#include "engine/kernels/cuda/rows.h"

#include "engine/kernels/cuda/launch-inl.h"
#include "engine/kernels/cuda/rows_kernels.h"

namespace milepost::kernels::cuda {

template <typename T>
absl::Status TakeRow(const T* x, int64_t batch, int64_t sequence, int64_t width, const int64_t* row,
                     T* out, cudaStream_t stream) {
  const TakeRowKernel<T> kernel = {x, batch, sequence, width, row, out};
  return Launch(kernel, kernel.grid(), stream, "TakeRow");
}

template <typename T>
absl::Status AddBias(const T* bias, int64_t rows, int64_t width, float* x, cudaStream_t stream) {
  const AddBiasKernel<T> kernel = {bias, rows, width, x};
  return Launch(kernel, kernel.grid(), stream, "AddBias");
}

#define MP_INSTANTIATE(T)                                                                \
  template absl::Status TakeRow(const T*, int64_t, int64_t, int64_t, const int64_t*, T*, \
                                cudaStream_t);                                           \
  template absl::Status AddBias(const T*, int64_t, int64_t, float*, cudaStream_t)
MP_INSTANTIATE(float);
MP_INSTANTIATE(bf16);
MP_INSTANTIATE(f16);

}  // namespace milepost::kernels::cuda
