// Sums of rows of up to three tables: tokens, positions, segments; T in {float, bf16}.
//
//   EmbeddingForward<bf16>({tokens, nullptr, nullptr, batch, sequence}, {wte, wpe}, width,
//                          DropoutParams{}, x);
#ifndef MILEPOST_ENGINE_KERNELS_CPU_EMBEDDING_H_
#define MILEPOST_ENGINE_KERNELS_CPU_EMBEDDING_H_

#include <cstdint>

#include "engine/dtype/half.h"
#include "engine/kernels/cpu/random.h"

namespace milepost::kernels {

// Which rows of the tables each of the batch * sequence rows reads. They must lie inside the
// tables: the data loader checks.
struct EmbeddingRows {
  const int32_t* tokens = nullptr;
  const int32_t* positions = nullptr;  // null: a row's place in its sequence
  const int32_t* segments = nullptr;   // null: 0
  int64_t batch = 0;
  int64_t sequence = 0;
};

template <typename T>
struct EmbeddingTables {
  const T* wte = nullptr;
  const T* wpe = nullptr;  // null: no positions
  const T* wse = nullptr;  // null: no segments
};

// out[r,:] = dropout(wte[token,:] + wpe[position,:] + wse[segment,:]).
template <typename T>
void EmbeddingForward(const EmbeddingRows& rows, const EmbeddingTables<T>& tables, int64_t width,
                      const DropoutParams& dropout, T* out);

// A table's gradient [rows, width]; null data: not wanted. Not accumulating, it is zeroed first.
struct TableGradient {
  float* data = nullptr;
  int64_t rows = 0;
  bool accumulate = false;
};

// Adds g = dropout mask * dy[r,:] to the rows that r read, in the order of r whatever the thread
// count. No workspace.
template <typename T>
void EmbeddingBackward(const EmbeddingRows& rows, const T* dy, int64_t width,
                       const DropoutParams& dropout, const TableGradient& dwte,
                       const TableGradient& dwpe, const TableGradient& dwse);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_KERNELS_CPU_EMBEDDING_H_
