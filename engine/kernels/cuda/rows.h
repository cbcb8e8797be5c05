// Rows of matrices: some picked out, put back, columns of all of them copied, and a bias added to
// all. T in {float, bf16, f16}; device memory, aligned to its elements.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_ROWS_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_ROWS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/stream.h"

namespace milepost::kernels::cuda {

// out[b, :] = x[b * sequence + *row, :], b < batch. `row`: device memory, less than sequence.
template <typename T>
absl::Status TakeRow(const T* x, int64_t batch, int64_t sequence, int64_t width, const int64_t* row,
                     T* out, cudaStream_t stream);

// order[rows]: the rows that have a target (0 or more), then those that have none; either in
// ascending order.
absl::Status OrderByTarget(const int32_t* targets, int64_t rows, int32_t* order,
                           cudaStream_t stream);

// out[i, :] = x[order[i], :], i < count; and the targets likewise, where out_targets is not null.
template <typename T>
absl::Status GatherRows(const T* x, const int32_t* order, int64_t count, int64_t width, T* out,
                        const int32_t* targets, int32_t* out_targets, cudaStream_t stream);

// out[order[i], :] = x[i, :], i < count; of i in [count, total): addend[order[i], :], or zeros
// where addend is null. addend may be out.
template <typename T>
absl::Status ScatterRows(const T* x, const int32_t* order, int64_t count, int64_t total,
                         int64_t width, const T* addend, T* out, cudaStream_t stream);

// out[r, :] = x[r, :], r < rows, both of them columns of wider rows, from one of which to the next
// there are `stride` elements.
template <typename T>
absl::Status CopyColumns(const T* x, int64_t rows, int64_t width, int64_t stride, T* out,
                         cudaStream_t stream);

// x[r, :] += bias[:], r < rows. X is float, or T is bf16 and so is X.
template <typename T, typename X>
absl::Status AddBias(const T* bias, int64_t rows, int64_t width, X* x, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_ROWS_H_
