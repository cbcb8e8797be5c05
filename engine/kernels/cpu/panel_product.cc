#include "engine/kernels/cpu/panel_product.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/panel_product.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "engine/kernels/cpu/transpose-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

// A tile of C in registers: AVX-512 has 32 of them, AVX2 16.
constexpr int kTileRows = HWY_MAX_BYTES >= 64 ? 12 : 6;
constexpr int kTileVectors = 2;

// A panel is read once a tile, from the second cache, which hardware alone does not hide: elements
// to ask for ahead of those that are multiplied.
constexpr int64_t kAhead = 256;

// Elements from one row of a block of A to the next, and from one tile's to the next where A is
// transposed: there a step's elements of a tile lie side by side, and whole vectors are stored,
// whose rest is written over by the next step.
constexpr int64_t kBlockRow = kPanelDepth + 16;
constexpr int64_t TileElements(int64_t depth) { return depth * kTileRows + kMaxLanes; }
static_assert(kPanelRows / kTileRows * TileElements(kPanelDepth) <= kPanelElements);
static_assert(kPanelRows % kTileRows == 0 && kPanelGroup % (kTileVectors * kMaxLanes) == 0);

HWY_INLINE int64_t PanelWidth() { return kTileVectors * static_cast<int64_t>(hn::Lanes(DF())); }

// Rows of op(B) as they are stored.
template <typename T>
HWY_INLINE void PackRows(const T* b, int64_t b_row, int64_t depth, int64_t columns, float* to) {
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  const int64_t width = PanelWidth();
  for (int64_t at = 0; at < kPanelGroup; at += lanes) {
    float* out = to + at / width * width * depth + at % width;
    const int64_t count = std::clamp<int64_t>(columns - at, 0, lanes);
    for (int64_t k = 0; k < depth; ++k) {
      const VF row = count == 0 ? hn::Zero(d) : LoadUpTo(d, b + k * b_row + at, count);
      hn::StoreU(row, d, out + k * width);
    }
  }
}

// Columns of op(B) are stored as rows.
template <typename T>
HWY_INLINE void PackColumns(const T* b, int64_t b_row, int64_t depth, int64_t columns, float* to) {
  constexpr int64_t kSteps = 16;
  const DF d;
  const int64_t width = PanelWidth();
  alignas(64) float rows[kPanelGroup * kSteps];
  for (int64_t k = 0; k < depth; k += kSteps) {
    const int64_t steps = std::min(kSteps, depth - k);
    for (int64_t j = 0; j < kPanelGroup; ++j) {
      float* row = rows + j * kSteps;
      if (j >= columns) {
        std::fill_n(row, kSteps, 0.0F);
        continue;
      }
      ForVectors(steps, [&](int64_t i, int64_t count) MP_SIMD {
        hn::StoreU(LoadUpTo(d, b + j * b_row + k + i, count), d, row + i);
      });
    }
    for (int64_t panel = 0; panel < kPanelGroup; panel += width) {
      float* out = to + panel * depth + k * width;
      if (steps % 4 == 0 && width % 4 == 0) {
        TransposeWords(reinterpret_cast<const uint32_t*>(rows + panel * kSteps), kSteps, width,
                       steps, reinterpret_cast<uint32_t*>(out), width);
        continue;
      }
      for (int64_t i = 0; i < steps; ++i) {
        for (int64_t j = 0; j < width; ++j) {
          out[i * width + j] = rows[(panel + j) * kSteps + i];
        }
      }
    }
  }
}

template <typename T>
HWY_INLINE void Pack(const T* b, int64_t b_row, bool transposed, int64_t depth, int64_t columns,
                     float* to) {
  transposed ? PackColumns(b, b_row, depth, columns, to) : PackRows(b, b_row, depth, columns, to);
}

template <typename T>
HWY_INLINE void PackTiles(const T* a, int64_t a_row, int64_t rows, int64_t depth, int64_t more,
                          float* to) {
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t k = 0; k < depth; ++k) {
    const T* from = a + k * a_row;
    float* out = to + k * kTileRows;
    for (int64_t row = 0; row < rows; row += kTileRows, out += TileElements(depth)) {
      for (int64_t i = 0; i < kTileRows; i += lanes) {
        const int64_t count = std::clamp<int64_t>(rows + more - row - i, 0, lanes);
        if (count == 0) break;
        hn::StoreU(LoadUpTo(d, from + row + i, count), d, out + i);
      }
    }
  }
}

template <typename T>
HWY_INLINE void PackA(const T* a, int64_t a_row, bool transposed, int64_t rows, int64_t depth,
                      int64_t more, float* to) {
  if (transposed) return PackTiles(a, a_row, rows, depth, more, to);
  const DF d;
  for (int64_t i = 0; i < rows; ++i) {
    ForVectors(depth, [&](int64_t k, int64_t count) MP_SIMD {
      hn::StoreU(LoadUpTo(d, a + i * a_row + k, count), d, to + i * kBlockRow + k);
    });
  }
}

// kTileRows rows by a panel of C. kRow, kStep: from one row, and one step of the depth, of A to the
// next.
template <int64_t kRow, int64_t kStep>
HWY_INLINE void Tile(const float* a, const float* panel, int64_t depth, bool accumulate, float* c,
                     int64_t c_row) {
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  VF sum[kTileRows][kTileVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kTileVectors; ++j) {
      sum[i][j] = accumulate ? hn::LoadU(d, c + i * c_row + j * lanes) : hn::Zero(d);
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    VF b[kTileVectors];
#pragma GCC unroll 16
    for (int j = 0; j < kTileVectors; ++j) b[j] = hn::LoadU(d, panel + j * lanes);
#pragma GCC unroll 16
    for (int j = 0; j < kTileVectors; ++j) __builtin_prefetch(panel + kAhead + j * lanes);
    panel += kTileVectors * lanes;
#pragma GCC unroll 16
    for (int i = 0; i < kTileRows; ++i) {
      const VF factor = hn::Set(d, a[i * kRow]);
#pragma GCC unroll 16
      for (int j = 0; j < kTileVectors; ++j) sum[i][j] = hn::MulAdd(factor, b[j], sum[i][j]);
    }
    a += kStep;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kTileVectors; ++j) hn::StoreU(sum[i][j], d, c + i * c_row + j * lanes);
  }
}

// A tile of which only rows x columns are C's.
template <int64_t kRow, int64_t kStep>
HWY_INLINE void Edge(const float* a, const float* panel, int64_t depth, bool accumulate, float* c,
                     int64_t c_row, int64_t rows, int64_t columns) {
  alignas(64) float tile[kTileRows * kTileVectors * kMaxLanes] = {};
  const int64_t width = PanelWidth();
  for (int64_t i = 0; accumulate && i < rows; ++i) {
    std::copy_n(c + i * c_row, columns, tile + i * width);
  }
  Tile<kRow, kStep>(a, panel, depth, accumulate, tile, width);
  for (int64_t i = 0; i < rows; ++i) std::copy_n(tile + i * width, columns, c + i * c_row);
}

template <int64_t kRow, int64_t kStep>
HWY_INLINE void Multiply(const PanelOperands& o, int64_t rows, int64_t columns, bool accumulate) {
  const int64_t width = PanelWidth();
  const int64_t tile = kRow == 1 ? TileElements(o.depth) : kTileRows * kRow;
  for (int64_t row = 0; row < rows; row += kTileRows) {
    const float* a = o.a + row / kTileRows * tile;
    for (int64_t column = 0; column < columns; column += width) {
      const float* panel = o.panels + column * o.depth;
      float* c = o.c + row * o.c_row + column;
      if (row + kTileRows <= rows && column + width <= columns) {
        Tile<kRow, kStep>(a, panel, o.depth, accumulate, c, o.c_row);
      } else {
        Edge<kRow, kStep>(a, panel, o.depth, accumulate, c, o.c_row,
                          std::min<int64_t>(kTileRows, rows - row),
                          std::min(width, columns - column));
      }
    }
  }
}

}  // namespace

void PackBf16(const bf16* b, int64_t b_row, bool transposed, int64_t depth, int64_t columns,
              float* to) {
  Pack(b, b_row, transposed, depth, columns, to);
}
void PackABf16(const bf16* a, int64_t a_row, bool transposed, int64_t rows, int64_t depth,
               int64_t more, float* to) {
  PackA(a, a_row, transposed, rows, depth, more, to);
}
void PackF16(const f16* b, int64_t b_row, bool transposed, int64_t depth, int64_t columns,
             float* to) {
  Pack(b, b_row, transposed, depth, columns, to);
}
void PackAF16(const f16* a, int64_t a_row, bool transposed, int64_t rows, int64_t depth,
              int64_t more, float* to) {
  PackA(a, a_row, transposed, rows, depth, more, to);
}

void MultiplyImpl(const PanelOperands& o, int64_t rows, int64_t columns, bool accumulate) {
  o.transposed ? Multiply<1, kTileRows>(o, rows, columns, accumulate)
               : Multiply<kBlockRow, 1>(o, rows, columns, accumulate);
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(PackBf16);
HWY_EXPORT(PackABf16);
HWY_EXPORT(PackF16);
HWY_EXPORT(PackAF16);
HWY_EXPORT(MultiplyImpl);

template <>
void PackPanels(const bf16* b, int64_t b_row, bool transposed, int64_t depth, int64_t columns,
                float* to) {
  HWY_DYNAMIC_DISPATCH(PackBf16)(b, b_row, transposed, depth, columns, to);
}
template <>
void PackBlock(const bf16* a, int64_t a_row, bool transposed, int64_t rows, int64_t depth,
               int64_t more, float* to) {
  HWY_DYNAMIC_DISPATCH(PackABf16)(a, a_row, transposed, rows, depth, more, to);
}
template <>
void PackPanels(const f16* b, int64_t b_row, bool transposed, int64_t depth, int64_t columns,
                float* to) {
  HWY_DYNAMIC_DISPATCH(PackF16)(b, b_row, transposed, depth, columns, to);
}
template <>
void PackBlock(const f16* a, int64_t a_row, bool transposed, int64_t rows, int64_t depth,
               int64_t more, float* to) {
  HWY_DYNAMIC_DISPATCH(PackAF16)(a, a_row, transposed, rows, depth, more, to);
}

void MultiplyPanels(const PanelOperands& operands, int64_t rows, int64_t columns, bool accumulate) {
  HWY_DYNAMIC_DISPATCH(MultiplyImpl)(operands, rows, columns, accumulate);
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
