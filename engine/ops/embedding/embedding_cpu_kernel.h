// Sums of rows of up to three tables: tokens, positions, segments; T in {float, bf16, f16}.
//
//   EmbeddingForward<bf16>({tokens, nullptr, nullptr, batch, sequence}, {wte, wpe}, width,
//                          DropoutParams{}, x);
#ifndef MILEPOST_ENGINE_OPS_EMBEDDING_EMBEDDING_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_EMBEDDING_EMBEDDING_CPU_KERNEL_H_

#include <cstdint>

#include "engine/dtype/half.h"
#include "engine/kernels/cpu/random.h"
#include "engine/ops/embedding/embedding_contract.h"

namespace milepost::kernels {

// out[r,:] = dropout(wte[token,:] + wpe[position,:] + wse[segment,:]). Without tokens out may be
// wte.
template <typename T>
void EmbeddingForward(const EmbeddingRows& rows, const EmbeddingTables<T>& tables, int64_t width,
                      const DropoutParams& dropout, T* out);

// Adds g = dropout mask * dy[r,:] to the rows that r read, in the order of r whatever the thread
// count. No workspace.
template <typename T>
void EmbeddingBackward(const EmbeddingRows& rows, const T* dy, int64_t width,
                       const DropoutParams& dropout, const TableGradient& dwte,
                       const TableGradient& dwpe, const TableGradient& dwse);

// out[r,:] = table[tokens[r] - first,:], r < rows; zeros where that is not in [0, count).
template <typename T>
void TokenRows(const int32_t* tokens, int64_t rows, const T* table, int64_t first, int64_t count,
               int64_t width, T* out);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_EMBEDDING_EMBEDDING_CPU_KERNEL_H_
