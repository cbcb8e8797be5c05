// Rows of matrices: one of each sequence picked out, and a bias added to all. T in {float, bf16,
// f16}; device memory, aligned to its elements.
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

// x[r, :] += bias[:], r < rows.
template <typename T>
absl::Status AddBias(const T* bias, int64_t rows, int64_t width, float* x, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_ROWS_H_
