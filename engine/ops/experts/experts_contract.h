// What experts are to the kernels: sizes, how an expert's rows are cut into products on a CPU, and
// the workspace on a GPU.
#ifndef MILEPOST_ENGINE_OPS_EXPERTS_EXPERTS_CONTRACT_H_
#define MILEPOST_ENGINE_OPS_EXPERTS_EXPERTS_CONTRACT_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "common/round_up.h"
#include "engine/ops/contract/row_order.h"

namespace milepost::kernels {

inline constexpr int64_t kMostExperts = 1024;  // a kernel keeps a row's numbers on its stack

struct ExpertRouting {
  int64_t rows = 0;
  int64_t experts = 0;
  int64_t per_token = 0;
  bool normalize = true;
};

// `per_token` rows of `width` numbers for each of `rows`.
struct RoutedRows {
  int64_t rows = 0;
  int64_t per_token = 0;
  int64_t width = 0;
};

// How many rows an expert has is known within a step alone, and a library prepares each size of
// product before it. So its rows are cut into pieces whose sizes are powers of two, the largest
// first. Where they are cut depends on their number alone.
inline constexpr int64_t kMostPieceRows = 1024;
inline int64_t ExpertPieceRows(int64_t rows) {
  return std::min<int64_t>(kMostPieceRows, std::bit_floor(static_cast<uint64_t>(rows)));
}

// Every size of piece that up to `rows` rows are cut into.
inline std::vector<int64_t> ExpertPieceSizes(int64_t rows) {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= ExpertPieceRows(rows); size *= 2) sizes.push_back(size);
  return sizes;
}

// ---- on a GPU ----
namespace cuda {

// What lies in the workspace of routing: the order of what rows picked, then the keys of sorting.
struct RoutingWorkspace {
  explicit RoutingWorkspace(const ExpertRouting& r) : picks(r.rows * r.per_token) {}
  int64_t OrderBytes() const {
    return CeilDiv(picks, 4) * 4 * static_cast<int64_t>(sizeof(int32_t));
  }
  int64_t Bytes() const { return OrderBytes() + RowOrderScratchBytes(picks); }
  int64_t picks;
};

}  // namespace cuda

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_EXPERTS_EXPERTS_CONTRACT_H_
