// What ordering rows on a GPU needs (engine/kernels/cuda/row_order_kernels.h), as plans count it.
#ifndef MILEPOST_ENGINE_OPS_CONTRACT_ROW_ORDER_H_
#define MILEPOST_ENGINE_OPS_CONTRACT_ROW_ORDER_H_

#include <cstdint>

#include "common/round_up.h"

namespace milepost::kernels::cuda {

// Rows that are sorted at once, without keys in memory.
inline constexpr int kOrderTile = 1024;

// The id above the row: all keys differ.
using RowKey = uint64_t;

// Two lists of keys, which merges read and write in turn; none where one tile holds all.
inline int64_t RowOrderScratchBytes(int64_t rows) {
  return rows <= kOrderTile ? 0 : 2 * CeilDiv(rows, 2) * 2 * static_cast<int64_t>(sizeof(RowKey));
}

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_CONTRACT_ROW_ORDER_H_
