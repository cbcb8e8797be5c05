// What the embedding's kernels agree on, on both devices: which rows of the tables are read, and
// the workspace of the backward on a GPU.
#ifndef MILEPOST_ENGINE_OPS_EMBEDDING_EMBEDDING_CONTRACT_H_
#define MILEPOST_ENGINE_OPS_EMBEDDING_EMBEDDING_CONTRACT_H_

#include <algorithm>
#include <cstdint>

#include "common/round_up.h"
#include "engine/ops/contract/row_order.h"

namespace milepost::kernels {

// Which rows of the tables each of the batch * sequence rows reads. They must lie inside the
// tables: the data loader checks.
struct EmbeddingRows {
  const int32_t* tokens = nullptr;     // null: the row's own number
  const int32_t* positions = nullptr;  // null: first_position and a row's place in its sequence
  const int32_t* segments = nullptr;   // null: 0
  int64_t batch = 0;
  int64_t sequence = 0;
  int64_t first_position = 0;
  // In the backward: wte's gradient has the rows of tokens in [first_token, end_token) alone, from
  // 0 on. Those of others are another rank's.
  int32_t first_token = 0;
  int32_t end_token = INT32_MAX;
};

template <typename T>
struct EmbeddingTables {
  const T* wte = nullptr;
  const T* wpe = nullptr;  // null: no positions
  const T* wse = nullptr;  // null: no segments
};

// A table's gradient [rows, width]; null data: not wanted. Not accumulating, it is zeroed first.
struct TableGradient {
  float* data = nullptr;
  int64_t rows = 0;
  bool accumulate = false;
};

// ---- on a GPU ----
namespace cuda {

// Ordered rows whose gradients a block sums.
inline constexpr int kRunRows = 32;

// What lies in the workspace of the backward.
struct EmbeddingWorkspace {
  int64_t runs, elements;  // blocks of RunSumKernel; floats of heads, and of tails

  EmbeddingWorkspace(int64_t rows, int64_t width)
      : runs(CeilDiv(rows, kRunRows)), elements(runs * width) {}
  int64_t OrderBytes() const { return runs * kRunRows * static_cast<int64_t>(sizeof(int32_t)); }
  int64_t Bytes() const {
    const int64_t sums = 2 * elements * static_cast<int64_t>(sizeof(float));
    return OrderBytes() + std::max(sums, RowOrderScratchBytes(runs * kRunRows));
  }
};
inline int64_t EmbeddingBackwardWorkspaceBytes(int64_t rows, int64_t width) {
  return EmbeddingWorkspace(rows, width).Bytes();
}

}  // namespace cuda

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_EMBEDDING_EMBEDDING_CONTRACT_H_
