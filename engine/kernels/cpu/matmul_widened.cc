#include "engine/kernels/cpu/matmul_widened.h"

#include <algorithm>

#include "common/round_up.h"
#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/panel_product.h"
#include "engine/kernels/cpu/parallel.h"

namespace milepost::kernels {
namespace {

// A piece of B is packed by all threads, which then multiply without waiting for each other; of it
// a panel's depth at a time stays in a core's second cache. The sums of so many rows are kept from
// one piece to the next.
constexpr int64_t kRows = 1024;
constexpr int64_t kColumns = 1024;
constexpr int64_t kInner = 1024;
constexpr int64_t kVector = 16;

struct Range {
  int64_t first;
  int64_t count;
};

// How a piece is shared out: every thread gets as many blocks of rows, of even size, and blocks are
// split by columns where there are few rows for so many threads.
class Shares {
 public:
  Shares(int64_t m, int64_t n, int64_t threads)
      : m_(m),
        n_(n),
        tiles_(CeilDiv(m, kRowUnit)),
        row_blocks_(std::min(tiles_, threads * CeilDiv(m, threads * kPanelRows))),
        columns_(RoundUp(CeilDiv(n, std::max<int64_t>(1, 2 * threads / row_blocks_)), kPanelGroup)),
        column_blocks_(CeilDiv(n, columns_)) {}
  int64_t tasks() const { return row_blocks_ * column_blocks_; }
  Range Rows(int64_t task) const {
    const int64_t block = task / column_blocks_;
    const int64_t first = tiles_ * block / row_blocks_ * kRowUnit;
    return {first, std::min(m_, tiles_ * (block + 1) / row_blocks_ * kRowUnit) - first};
  }
  Range Columns(int64_t task) const {
    const int64_t first = task % column_blocks_ * columns_;
    return {first, std::min(columns_, n_ - first)};
  }

 private:
  static constexpr int64_t kRowUnit = 12;  // of every SIMD target's tiles of C
  static_assert(kPanelRows % kRowUnit == 0);
  const int64_t m_, n_;
  const int64_t tiles_, row_blocks_;
  const int64_t columns_, column_blocks_;
};

}  // namespace

struct WidenedProduct::Piece {
  int64_t row, rows;
  int64_t column, columns;
  int64_t inner, depth;
};

// Of a piece: what a thread does at once.
struct WidenedProduct::Block {
  int64_t row, rows;
  int64_t column, columns;
  int64_t inner, depth;
};

struct WidenedProduct::Scratch {
  float* panels;
  float* bias;
  float* a;     // kPanelElements a thread
  float* sums;  // of a piece of C
  size_t bytes;
};

template <typename T>
struct WidenedProduct::Operands {
  const T* a;
  const T* b;
  const void* bias;
  void* c;
};

WidenedProduct::WidenedProduct(const MatmulSpec& spec, int threads)
    : spec_(spec),
      threads_(threads),
      a_row_(spec.a_row > 0     ? spec.a_row
             : spec.transpose_a ? spec.m
                                : spec.k),
      b_row_(spec.b_row > 0     ? spec.b_row
             : spec.transpose_b ? spec.k
                                : spec.n),
      c_row_(spec.c_row > 0 ? spec.c_row : spec.n),
      sums_row_(RoundUp(std::min(spec.n, kColumns), kVector) + kVector) {}

WidenedProduct::Scratch WidenedProduct::Carve(void* workspace) const {
  const int64_t columns = std::min(spec_.n, kColumns);
  int64_t used = 0;
  const auto take = [&](int64_t elements) {
    float* const begin = workspace == nullptr ? nullptr : static_cast<float*>(workspace) + used;
    used += RoundUp(elements, kVector);
    return begin;
  };
  Scratch scratch;
  scratch.panels = take(std::min(spec_.k, kInner) * RoundUp(columns, kPanelGroup));
  scratch.bias = take(spec_.bias ? columns : 0);
  scratch.a = take(threads_ * kPanelElements);
  scratch.sums = take(Rounds() ? std::min(spec_.m, kRows) * sums_row_ : 0);
  scratch.bytes = static_cast<size_t>(used) * sizeof(float);
  return scratch;
}

size_t WidenedProduct::WorkspaceBytes() const { return Carve(nullptr).bytes; }

template <typename T>
void WidenedProduct::PackB(const Operands<T>& o, const Piece& p, const Scratch& scratch) const {
  const int64_t groups = CeilDiv(p.columns, kPanelGroup);
  ParallelFor(0, groups * CeilDiv(p.depth, kPanelDepth), 1, [&](int64_t first, int64_t last) {
    for (int64_t task = first; task < last; ++task) {
      const int64_t column = task % groups * kPanelGroup;
      const int64_t inner = task / groups * kPanelDepth;
      const int64_t depth = std::min(kPanelDepth, p.depth - inner);
      const int64_t at = p.column + column, step = p.inner + inner;
      const T* b = o.b + (spec_.transpose_b ? at * b_row_ + step : step * b_row_ + at);
      PackPanels(b, b_row_, spec_.transpose_b, depth, std::min(kPanelGroup, p.columns - column),
                 scratch.panels + inner * groups * kPanelGroup + column * depth);
    }
  });
  if (!spec_.bias || p.inner != 0) return;
  if (spec_.bias_type == kDTypeOf<T>) {
    CastToFloat(static_cast<const T*>(o.bias) + p.column, p.columns, scratch.bias);
  } else {
    std::copy_n(static_cast<const float*>(o.bias) + p.column, p.columns, scratch.bias);
  }
}

// What the sums of a block start from, where that is not zero.
template <typename T>
void WidenedProduct::Begin(const Operands<T>& o, const Block& block, const float* bias, float* sums,
                           int64_t row) const {
  if (spec_.accumulate && Rounds()) {
    CastRowsToFloat(static_cast<const T*>(o.c) + block.row * c_row_ + block.column, c_row_,
                    block.rows, block.columns, sums, row);
  }
  for (int64_t i = 0; spec_.bias && i < block.rows; ++i) {
    float* const to = sums + i * row;
    if (!spec_.accumulate) {
      std::copy_n(bias, block.columns, to);
      continue;
    }
    for (int64_t j = 0; j < block.columns; ++j) to[j] += bias[j];
  }
}

template <typename T>
void WidenedProduct::Multiply(const Operands<T>& o, const Piece& p, const Block& block,
                              float* packed, const Scratch& scratch) const {
  const int64_t at = block.row * c_row_ + block.column;
  const int64_t column = block.column - p.column;
  const int64_t row = Rounds() ? sums_row_ : c_row_;
  float* const sums =
      Rounds() ? scratch.sums + (block.row - p.row) * row + column : static_cast<float*>(o.c) + at;
  if (block.inner == 0) Begin(o, block, scratch.bias + column, sums, row);
  const T* a = o.a + (spec_.transpose_a ? block.inner * a_row_ + block.row
                                        : block.row * a_row_ + block.inner);
  PackBlock(a, a_row_, spec_.transpose_a, block.rows, block.depth, spec_.m - block.row - block.rows,
            packed);
  const int64_t panels = (block.inner - p.inner) * RoundUp(p.columns, kPanelGroup);
  MultiplyPanels({.a = packed,
                  .transposed = spec_.transpose_a,
                  .panels = scratch.panels + panels + column * block.depth,
                  .depth = block.depth,
                  .c = sums,
                  .c_row = row},
                 block.rows, block.columns, block.inner > 0 || spec_.accumulate || spec_.bias);
  if (!Rounds() || block.inner + block.depth < spec_.k) return;
  CastRowsFromFloat(sums, row, block.rows, block.columns, static_cast<T*>(o.c) + at, c_row_);
}

// One thread's blocks, each a panel's depth further in turn.
template <typename T>
void WidenedProduct::MultiplyShare(const Operands<T>& o, const Piece& p, int64_t share,
                                   const Scratch& scratch) const {
  const Shares shares(p.rows, p.columns, threads_);
  const int64_t first = shares.tasks() * share / threads_;
  const int64_t last = shares.tasks() * (share + 1) / threads_;
  for (int64_t inner = 0; inner < p.depth; inner += kPanelDepth) {
    for (int64_t task = first; task < last; ++task) {
      const Range row = shares.Rows(task), column = shares.Columns(task);
      const Block block{p.row + row.first, row.count,       p.column + column.first,
                        column.count,      p.inner + inner, std::min(kPanelDepth, p.depth - inner)};
      Multiply(o, p, block, scratch.a + share * kPanelElements, scratch);
    }
  }
}

template <typename T>
void WidenedProduct::RunAs(const Operands<T>& o, const Scratch& scratch) const {
  for (int64_t n = 0; n < spec_.n; n += kColumns) {
    for (int64_t m = 0; m < spec_.m; m += kRows) {
      for (int64_t k = 0; k < spec_.k; k += kInner) {
        const Piece p{m, std::min(kRows, spec_.m - m), n, std::min(kColumns, spec_.n - n),
                      k, std::min(kInner, spec_.k - k)};
        PackB(o, p, scratch);
        ParallelTasks(threads_, [&](int64_t share, int) { MultiplyShare(o, p, share, scratch); });
      }
    }
  }
}

void WidenedProduct::Run(const void* a, const void* b, const void* bias, void* c,
                         void* workspace) const {
  const Scratch scratch = Carve(workspace);
  if (spec_.a == DType::kBf16) {
    RunAs<bf16>({static_cast<const bf16*>(a), static_cast<const bf16*>(b), bias, c}, scratch);
  } else {
    RunAs<f16>({static_cast<const f16*>(a), static_cast<const f16*>(b), bias, c}, scratch);
  }
}

}  // namespace milepost::kernels
