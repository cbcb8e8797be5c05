// Orders the rows of a batch by an id of each, and rows of one id by themselves: tiles are sorted,
// then merged in pairs, in O(n log(n)^2) steps. The order is one, so it is always the same.
//
//   MP_RETURN_IF_ERROR(RunRowOrder(ids, rows, scratch, order, run));  // run(kernel) launches it
//
// ids.Of(context, row) is at least 0. `scratch`: RowOrderScratchBytes, 16-byte aligned, not
// `order`.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_ROW_ORDER_KERNELS_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_ROW_ORDER_KERNELS_H_

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "common/status_macros.h"
#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/contract/row_order.h"

namespace milepost::kernels::cuda {

// Where sorted keys go: on to the next merge or, as rows alone, to those who asked.
struct SortedRows {
  RowKey* keys = nullptr;
  int32_t* order = nullptr;  // null: not the last

  template <typename Context>
  MP_DEVICE void Put(Context& c, int64_t place, RowKey key) const {
    if (order != nullptr) {
      c.Store(order + place, static_cast<int32_t>(key & 0xffffffff));
    } else {
      c.Store(keys + place, key);
    }
  }
};

// A block sorts a tile (Batcher's bitonic network; Knuth, vol. 3, 5.3.4).
template <typename Ids>
struct SortTileKernel {
  static constexpr int kThreads = 256;
  Ids ids;
  int64_t rows;
  SortedRows out;

  Grid grid() const { return {.x = CeilDiv(rows, kOrderTile)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    auto tile = c.template Shared<RowKey, kOrderTile, 0>();
    const int64_t begin = c.block() * kOrderTile;
    for (int i = c.thread(); i < kOrderTile; i += kThreads) {
      const int64_t row = begin + i;
      const RowKey id = row < rows ? static_cast<uint32_t>(ids.Of(c, row)) : 0xffffffff;
      tile.Set(i, id << 32 | static_cast<uint32_t>(row));
    }
    c.Sync();
    for (int size = 2; size <= kOrderTile; size *= 2) {
      for (int stride = size / 2; stride > 0; stride /= 2) Step(c, tile, size, stride);
    }
    for (int i = c.thread(); i < kOrderTile; i += kThreads) {
      if (begin + i < rows) out.Put(c, begin + i, tile.Get(i));
    }
  }

 private:
  template <typename Context, typename Tile>
  MP_DEVICE void Step(Context& c, const Tile& tile, int size, int stride) const {
    for (int pair = c.thread(); pair < kOrderTile / 2; pair += kThreads) {
      const int at = 2 * pair - (pair & (stride - 1));
      const RowKey a = tile.Get(at), b = tile.Get(at + stride);
      if ((a > b) != ((at & size) == 0)) continue;
      tile.Set(at, b);
      tile.Set(at + stride, a);
    }
    c.Sync();
  }
};

// Merges each two neighbouring runs of `run` keys. A key's place is its own in its run and the
// number of keys of the other run that are smaller.
struct MergeRunsKernel {
  static constexpr int kThreads = 256;
  const RowKey* keys;
  int64_t rows, run;
  SortedRows out;

  Grid grid() const { return {.x = CeilDiv(rows, kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t i = c.block() * kThreads + c.thread();
    if (i >= rows) return;
    const RowKey key = c.Load(keys + i);
    const int64_t mine = i / run;
    const int64_t begin = Within((mine ^ 1) * run), end = Within((mine ^ 1) * run + run);
    int64_t low = begin, high = end;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (c.Load(keys + middle) < key) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    out.Put(c, mine / 2 * 2 * run + (i - mine * run) + (low - begin), key);
  }

 private:
  MP_DEVICE int64_t Within(int64_t at) const { return at < rows ? at : rows; }
};

template <typename Ids, typename Run>
absl::Status RunRowOrder(const Ids& ids, int64_t rows, RowKey* scratch, int32_t* order,
                         const Run& run) {
  RowKey* from = scratch;
  RowKey* to = scratch + CeilDiv(rows, 2) * 2;
  const auto out = [&](int64_t sorted, RowKey* keys) {
    return SortedRows{keys, sorted >= rows ? order : nullptr};
  };
  MP_RETURN_IF_ERROR(run(SortTileKernel<Ids>{ids, rows, out(kOrderTile, from)}));
  for (int64_t sorted = kOrderTile; sorted < rows; sorted *= 2) {
    MP_RETURN_IF_ERROR(run(MergeRunsKernel{from, rows, sorted, out(2 * sorted, to)}));
    std::swap(from, to);
  }
  return absl::OkStatus();
}

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_ROW_ORDER_KERNELS_H_
