// The kernels behind embedding_cuda_kernel.h.
#ifndef MILEPOST_ENGINE_OPS_EMBEDDING_EMBEDDING_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPS_EMBEDDING_EMBEDDING_CUDA_KERNEL_INL_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "common/status_macros.h"
#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/elementwise_kernels.h"
#include "engine/kernels/cuda/random.h"
#include "engine/kernels/cuda/row_order_kernels.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/embedding/embedding_contract.h"
#include "engine/ops/embedding/embedding_cuda_kernel.h"
#include "engine/ops/norm/norm_any_cuda_kernel-inl.h"
#include "engine/ops/norm/norm_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {

// What a thread has of a row: 32 elements whose mask eight Philox calls give (an Item), or one.
struct ItemShare {
  static constexpr int kElements = kItemElements;
  Item item = {};

  MP_DEVICE static int64_t Begin(int64_t index) { return index / 2 * 64 + index % 2 * 8; }
  template <typename Context, typename T>
  MP_DEVICE static ItemShare Of(Context& c, const T* p) {
    return {LoadItem(c, p)};
  }
  template <typename Context, typename T>
  MP_DEVICE void Put(Context& c, T* p) const {
    StoreItem(c, p, item);
  }
  template <typename Context>
  MP_DEVICE void Drop(Context& c, const DropoutMask& mask, int64_t element) {
    DropItem(c, mask, element, item);
  }
  MP_DEVICE void Add(const ItemShare& other) {
    MP_UNROLL
    for (int i = 0; i < kItemElements; ++i) item.v[i / 8][i % 8] += other.item.v[i / 8][i % 8];
  }
};
struct SingleShare {
  static constexpr int kElements = 1;
  float value = 0;

  MP_DEVICE static int64_t Begin(int64_t index) { return index; }
  template <typename Context, typename T>
  MP_DEVICE static SingleShare Of(Context& c, const T* p) {
    return {Widen(c.Load(p))};
  }
  template <typename Context, typename T>
  MP_DEVICE void Put(Context& c, T* p) const {
    c.Store(p, Narrow<T>(value));
  }
  template <typename Context>
  MP_DEVICE void Drop(Context& c, const DropoutMask& mask, int64_t element) {
    value = DropElement(c, mask, element, value);
  }
  MP_DEVICE void Add(const SingleShare& other) { value += other.value; }
};

// Which row of a table row r of the batch reads. Of tokens those in [first, end) are rows of the
// table, from 0 on; others have none.
struct TableIds {
  const int32_t* ids = nullptr;  // null: begin + r % period
  int64_t period = 1;
  int64_t begin = 0;
  int first = 0;
  int end = INT32_MAX;

  template <typename Context>
  MP_DEVICE int Of(Context& c, int64_t r) const {
    return ids == nullptr ? static_cast<int>(begin + r % period) : c.Load(ids + r);
  }
  MP_DEVICE bool Has(int id) const { return id >= first && id < end; }
};
inline TableIds TokenIds(const EmbeddingRows& rows) {
  return {.ids = rows.tokens, .first = rows.first_token, .end = rows.end_token};
}
inline TableIds PositionIds(const EmbeddingRows& rows) {
  return {.ids = rows.positions, .period = rows.sequence, .begin = rows.first_position};
}
inline TableIds SegmentIds(const EmbeddingRows& rows) { return {.ids = rows.segments}; }

template <typename T, typename Share>
struct EmbeddingForwardKernel {
  static constexpr int kThreads = 256;
  EmbeddingRows rows;
  EmbeddingTables<T> tables;
  int64_t width;
  DropoutMask mask;
  T* out;

  int64_t shares() const { return rows.batch * rows.sequence * (width / Share::kElements); }
  Grid grid() const { return {.x = CeilDiv(shares(), kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t per_row = width / Share::kElements;
    const int64_t index = c.block() * kThreads + c.thread();
    const int64_t row = index / per_row;
    if (row >= rows.batch * rows.sequence) return;
    const int64_t column = Share::Begin(index % per_row);
    const int64_t token = rows.tokens == nullptr ? row : c.Load(rows.tokens + row);
    Share sum = Share::Of(c, tables.wte + token * width + column);
    if (tables.wpe != nullptr) {
      const TableIds positions = {rows.positions, rows.sequence, rows.first_position};
      sum.Add(Share::Of(c, tables.wpe + positions.Of(c, row) * width + column));
    }
    if (tables.wse != nullptr) {
      const TableIds segments = {rows.segments, 1};
      sum.Add(Share::Of(c, tables.wse + segments.Of(c, row) * width + column));
    }
    sum.Drop(c, mask, row * width + column);
    sum.Put(c, out + row * width + column);
  }
};

template <typename T, typename Share>
struct TokenRowsKernel {
  static constexpr int kThreads = 256;
  const int32_t* tokens;
  int64_t rows;
  const T* table;
  int64_t first, count, width;
  T* out;

  Grid grid() const { return {.x = CeilDiv(rows * (width / Share::kElements), kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t per_row = width / Share::kElements;
    const int64_t index = c.block() * kThreads + c.thread();
    const int64_t row = index / per_row;
    if (row >= rows) return;
    const int64_t column = Share::Begin(index % per_row);
    const int64_t own = c.Load(tokens + row) - first;
    Share share = {};
    if (own >= 0 && own < count) share = Share::Of(c, table + own * width + column);
    share.Put(c, out + row * width + column);
  }
};

// Rows by (r % period, r), of whole periods.
struct PeriodicOrderKernel {
  static constexpr int kThreads = 256;
  int64_t rows, period;
  int32_t* order;

  Grid grid() const { return {.x = CeilDiv(rows, kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t row = c.block() * kThreads + c.thread();
    if (row >= rows) return;
    const int64_t place = row % period * (rows / period) + row / period;
    c.Store(order + place, static_cast<int32_t>(row));
  }
};

// Sums runs of one id within kRunRows ordered rows. A run that lies in them as a whole goes to the
// table; what continues a run of earlier ones goes to heads[block], what goes on in later ones to
// tails[block].
template <typename T, typename Share>
struct RunSumKernel {
  static constexpr int kThreads = 128;
  TableIds ids;
  const int32_t* order;
  int64_t rows, width;
  const T* dy;
  DropoutMask mask;
  float* table;
  float* heads;
  float* tails;

  Grid grid() const {
    return {.x = CeilDiv(rows, kRunRows), .y = CeilDiv(width / Share::kElements, kThreads)};
  }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t share = c.block_y() * kThreads + c.thread();
    if (share >= width / Share::kElements) return;
    const int64_t column = Share::Begin(share);
    const int64_t begin = c.block() * kRunRows;
    const int64_t end = begin + kRunRows < rows ? begin + kRunRows : rows;
    bool continues = begin > 0 && IdAt(c, begin - 1) == IdAt(c, begin);
    int id = IdAt(c, begin);
    Share sum = {};
    for (int64_t k = begin; k < end; ++k) {
      const int64_t row = c.Load(order + k);
      Share gradient = Share::Of(c, dy + row * width + column);
      gradient.Drop(c, mask, row * width + column);
      sum.Add(gradient);
      const int next = k + 1 < rows ? IdAt(c, k + 1) : -1;
      if (next == id && k + 1 < end) continue;
      Flush(c, id, continues, next == id, column, sum);
      sum = {};
      continues = false;
      id = next;
    }
  }

 private:
  template <typename Context>
  MP_DEVICE int IdAt(Context& c, int64_t k) const {
    return ids.Of(c, c.Load(order + k));
  }
  template <typename Context>
  MP_DEVICE void Flush(Context& c, int id, bool continues, bool goes_on, int64_t column,
                       Share sum) const {
    if (continues) return sum.Put(c, heads + c.block() * width + column);
    if (goes_on) return sum.Put(c, tails + c.block() * width + column);
    if (!ids.Has(id)) return;
    float* at = table + (id - ids.first) * width + column;
    sum.Add(Share::Of(c, at));
    sum.Put(c, at);
  }
};

// Adds up the runs that lie in several blocks of RunSumKernel, each where it begins.
template <typename Share>
struct RunJoinKernel {
  static constexpr int kThreads = 128;
  TableIds ids;
  const int32_t* order;
  int64_t rows, width;
  float* table;
  const float* heads;
  const float* tails;

  Grid grid() const {
    return {.x = CeilDiv(rows, kRunRows), .y = CeilDiv(width / Share::kElements, kThreads)};
  }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t share = c.block_y() * kThreads + c.thread();
    const int64_t next = (c.block() + 1) * kRunRows;  // row that the following block begins with
    if (share >= width / Share::kElements || next >= rows) return;
    const int id = IdAt(c, next - 1);
    if (IdAt(c, next) != id) return;  // no run goes on from this block
    const int64_t begin = c.block() * kRunRows;
    if (begin > 0 && IdAt(c, begin) == id && IdAt(c, begin - 1) == id) return;  // nor begins in it
    const int64_t column = Share::Begin(share);
    Share sum = Share::Of(c, tails + c.block() * width + column);
    for (int64_t k = next; k < rows && IdAt(c, k) == id; k += kRunRows) {
      sum.Add(Share::Of(c, heads + k / kRunRows * width + column));
    }
    if (!ids.Has(id)) return;
    float* at = table + (id - ids.first) * width + column;
    sum.Add(Share::Of(c, at));
    sum.Put(c, at);
  }

 private:
  template <typename Context>
  MP_DEVICE int IdAt(Context& c, int64_t k) const {
    return ids.Of(c, c.Load(order + k));
  }
};

// Places of the backward's scratch. Keys are needed before the sums are: they may share theirs.
struct EmbeddingScratch {
  int32_t* order;
  RowKey* keys;
  float* heads;
  float* tails;
};

// order[k] = the k-th row of the batch by (id, row).
template <typename Run>
absl::Status RunTableOrder(const TableIds& ids, int64_t rows, const EmbeddingScratch& scratch,
                           const Run& run) {
  if (ids.ids == nullptr && rows % ids.period == 0) {
    return run(PeriodicOrderKernel{rows, ids.period, scratch.order});
  }
  return RunRowOrder(ids, rows, scratch.keys, scratch.order, run);
}

template <typename Share, typename T, typename Run>
absl::Status RunTableGradient(const TableIds& ids, int64_t rows, const T* dy, int64_t width,
                              const DropoutMask& mask, const TableGradient& table,
                              const EmbeddingScratch& scratch, const Run& run) {
  if (table.data == nullptr) return absl::OkStatus();
  if (!table.accumulate) MP_RETURN_IF_ERROR(run(FillKernel{table.data, table.rows * width, 0.0f}));
  MP_RETURN_IF_ERROR(RunTableOrder(ids, rows, scratch, run));
  MP_RETURN_IF_ERROR(run(RunSumKernel<T, Share>{ids, scratch.order, rows, width, dy, mask,
                                                table.data, scratch.heads, scratch.tails}));
  return run(RunJoinKernel<Share>{ids, scratch.order, rows, width, table.data, scratch.heads,
                                  scratch.tails});
}

inline bool EmbedsItems(int64_t width, const DropoutMask& mask) {
  return width % 64 == 0 && (mask.position == nullptr || mask.InGroups());
}

// run(kernel) launches it.
template <typename T, typename Run>
absl::Status RunEmbeddingBackward(const EmbeddingRows& rows, const T* dy, int64_t width,
                                  const DropoutMask& mask, const TableGradient (&tables)[3],
                                  const EmbeddingScratch& scratch, const Run& run) {
  const TableIds ids[3] = {TokenIds(rows), PositionIds(rows), SegmentIds(rows)};
  const int64_t n = rows.batch * rows.sequence;
  for (int i = 0; i < 3; ++i) {
    MP_RETURN_IF_ERROR(
        EmbedsItems(width, mask)
            ? RunTableGradient<ItemShare>(ids[i], n, dy, width, mask, tables[i], scratch, run)
            : RunTableGradient<SingleShare>(ids[i], n, dy, width, mask, tables[i], scratch, run));
  }
  return absl::OkStatus();
}

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_EMBEDDING_EMBEDDING_CUDA_KERNEL_INL_H_
