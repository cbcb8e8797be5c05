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
absl::Status CopyColumns(const T* x, int64_t rows, int64_t width, int64_t stride, T* out,
                         cudaStream_t stream) {
  return RunCopyColumns(x, rows, width, stride, out, [&](const auto& kernel) {
    return Launch(kernel, kernel.grid(), stream, "CopyColumns");
  });
}

template <typename T, typename X>
absl::Status AddBias(const T* bias, int64_t rows, int64_t width, X* x, cudaStream_t stream) {
  const AddBiasKernel<T, X> kernel = {bias, rows, width, x};
  return Launch(kernel, kernel.grid(), stream, "AddBias");
}

absl::Status OrderByTarget(const int32_t* targets, int64_t rows, int32_t* order,
                           cudaStream_t stream) {
  const OrderByTargetKernel kernel = {targets, rows, order};
  return Launch(kernel, kernel.grid(), stream, "OrderByTarget");
}

template <typename T>
absl::Status GatherRows(const T* x, const int32_t* order, int64_t count, int64_t width, T* out,
                        const int32_t* targets, int32_t* out_targets, cudaStream_t stream) {
  if (width % kPack<T> == 0) {
    const GatherRowsKernel<T, kPack<T>> kernel = {x,   order,   count,      width,
                                                  out, targets, out_targets};
    return Launch(kernel, kernel.grid(), stream, "GatherRows");
  }
  const GatherRowsKernel<T, 1> kernel = {x, order, count, width, out, targets, out_targets};
  return Launch(kernel, kernel.grid(), stream, "GatherRows");
}

template <typename T>
absl::Status ScatterRows(const T* x, const int32_t* order, int64_t count, int64_t total,
                         int64_t width, const T* addend, T* out, cudaStream_t stream) {
  if (width % kPack<T> == 0) {
    const ScatterRowsKernel<T, kPack<T>> kernel = {x, order, count, total, width, addend, out};
    return Launch(kernel, kernel.grid(), stream, "ScatterRows");
  }
  const ScatterRowsKernel<T, 1> kernel = {x, order, count, total, width, addend, out};
  return Launch(kernel, kernel.grid(), stream, "ScatterRows");
}

#define MP_INSTANTIATE(T)                                                                          \
  template absl::Status TakeRow(const T*, int64_t, int64_t, int64_t, const int64_t*, T*,           \
                                cudaStream_t);                                                     \
  template absl::Status GatherRows(const T*, const int32_t*, int64_t, int64_t, T*, const int32_t*, \
                                   int32_t*, cudaStream_t);                                        \
  template absl::Status ScatterRows(const T*, const int32_t*, int64_t, int64_t, int64_t, const T*, \
                                    T*, cudaStream_t);                                             \
  template absl::Status CopyColumns(const T*, int64_t, int64_t, int64_t, T*, cudaStream_t);        \
  template absl::Status AddBias(const T*, int64_t, int64_t, float*, cudaStream_t)
template absl::Status AddBias(const bf16*, int64_t, int64_t, bf16*, cudaStream_t);
MP_INSTANTIATE(float);
MP_INSTANTIATE(bf16);
MP_INSTANTIATE(f16);

}  // namespace milepost::kernels::cuda
