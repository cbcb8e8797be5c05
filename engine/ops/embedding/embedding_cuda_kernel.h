// Sums of rows of up to three tables: tokens, positions, segments; semantics of the CPU's
// (embedding_cpu_kernel.h). T in {float, bf16, f16}; all device memory, 16-byte aligned. Fast where
// width and the elements of dropout's samples are multiples of 64.
#ifndef MILEPOST_ENGINE_OPS_EMBEDDING_EMBEDDING_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPS_EMBEDDING_EMBEDDING_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/random.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/embedding/embedding_contract.h"

namespace milepost::kernels::cuda {

// out[r,:] = dropout(wte[token,:] + wpe[position,:] + wse[segment,:]).
template <typename T>
absl::Status EmbeddingForward(const EmbeddingRows& rows, const EmbeddingTables<T>& tables,
                              int64_t width, const DropoutArgs& dropout, T* out,
                              cudaStream_t stream);

// out[r,:] = table[tokens[r] - first,:], r < rows; zeros where that is not in [0, count).
template <typename T>
absl::Status TokenRows(const int32_t* tokens, int64_t rows, const T* table, int64_t first,
                       int64_t count, int64_t width, T* out, cudaStream_t stream);

// Adds g = dropout mask * dy[r,:] to the rows that r read. Without atomics: the batch's rows are
// ordered by the table's row that they read, runs of 32 are summed, and the sums of runs that
// belong together are added in order. The same inputs give the same bits. `workspace`:
// EmbeddingBackwardWorkspaceBytes, 16-byte aligned; serves the tables one after the other.
template <typename T>
absl::Status EmbeddingBackward(const EmbeddingRows& rows, const T* dy, int64_t width,
                               const DropoutArgs& dropout, const TableGradient& dwte,
                               const TableGradient& dwpe, const TableGradient& dwse,
                               void* workspace, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_EMBEDDING_EMBEDDING_CUDA_KERNEL_H_
