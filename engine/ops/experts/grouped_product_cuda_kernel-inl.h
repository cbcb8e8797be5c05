// The kernels behind grouped_product_cuda_kernel.h. A block makes a tile of kTileRows x kTileRows
// results. What it multiplies comes through shared memory, kTileWords words of 32 bits deep, while
// the next ones are on their way into registers.
#ifndef MILEPOST_ENGINE_OPS_EXPERTS_GROUPED_PRODUCT_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPS_EXPERTS_GROUPED_PRODUCT_CUDA_KERNEL_INL_H_

#include <bit>
#include <cstdint>

#include "engine/kernels/cuda/context.h"
#include "engine/ops/experts/grouped_product_cuda_kernel.h"

namespace milepost::kernels::cuda {

inline constexpr int kTileThreads = 256;
inline constexpr int kTileRows = 128;  // and columns
inline constexpr int kTileWords = 16;

template <typename T>
struct TileOf {
  static constexpr int kEach = 4 / static_cast<int>(sizeof(T));  // elements of a word
  static constexpr int kDepth = kTileWords * kEach;
  // Words from one row to the next: those that a warp reads at once lie in different banks.
  static constexpr int kStride = sizeof(T) == 4 ? 17 : 20;
  static constexpr int kWords = kTileRows * kStride;
};

// Elements as 32-bit words, the first in the lower half.
MP_DEVICE uint32_t WordOf(float value) { return std::bit_cast<uint32_t>(value); }
template <typename T>
MP_DEVICE uint32_t WordOf(T first, T second) {
  return first.bits | static_cast<uint32_t>(second.bits) << 16;
}

// A matrix of [rows, depth]: neighbours along the depth lie side by side, or those along the rows.
template <typename T>
struct Factor {
  const T* data;
  int stride;
  int rows;  // behind them all is 0
};

// What a thread brings of a tile: two packs of four words each. kN: kPack<T>, or 1 where rows may
// begin anywhere.
template <typename T, int kN, bool kAlongDepth>
struct TilePart {
  using Tile = TileOf<T>;
  using Words = Pack<uint32_t, 4>;
  Words held[2];

  template <typename Context>
  MP_DEVICE void Load(Context& c, const Factor<T>& from, int first, int depth) {
    MP_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int row = Row(c, i);
      if constexpr (kAlongDepth) {
        const int at = first + c.thread() % 4 * kPack<T>;
        held[i] = ReadWords(c, from.data + int64_t{row} * from.stride + at,
                            row < from.rows ? depth - at : 0);
      } else {
        // Of 16-bit numbers the two packs follow each other along the depth.
        const int at = first + Word(c) * Tile::kEach + (sizeof(T) == 2 ? i : 0);
        held[i] = ReadWords(c, from.data + int64_t{at} * from.stride + row,
                            at < depth ? from.rows - row : 0);
      }
    }
  }

  // Into tile[offset...].
  template <typename Context, typename Array>
  MP_DEVICE void Store(Context& c, const Array& tile, int offset) const {
    if constexpr (!kAlongDepth && sizeof(T) == 2) return StoreTurned(c, tile, offset);
    constexpr int kApart = kAlongDepth ? 1 : Tile::kStride;
    const int column = kAlongDepth ? c.thread() % 4 * 4 : Word(c);
    MP_UNROLL
    for (int i = 0; i < 2; ++i) {
      MP_UNROLL
      for (int w = 0; w < 4; ++w) {
        tile.Set(offset + Row(c, i) * Tile::kStride + column + w * kApart, held[i].v[w]);
      }
    }
  }

 private:
  // The j-th elements of both packs are a word of row j. The halves of a warp write rows that are
  // an odd multiple of 4 apart: 8 apart they would lie in the same banks.
  template <typename Context, typename Array>
  MP_DEVICE void StoreTurned(Context& c, const Array& tile, int offset) const {
    const bool upper = c.lane() >= kWarp / 2;
    const int at = offset + Row(c, 0) * Tile::kStride + Word(c);
    MP_UNROLL
    for (int w = 0; w < 4; ++w) {
      const uint32_t a = upper ? held[0].v[w ^ 2] : held[0].v[w];
      const uint32_t b = upper ? held[1].v[w ^ 2] : held[1].v[w];
      const int row = 2 * w ^ (upper ? 4 : 0);
      tile.Set(at + row * Tile::kStride, (a & 0xffff) | b << 16);
      tile.Set(at + (row + 1) * Tile::kStride, a >> 16 | (b & 0xffff0000));
    }
  }

  // The first row, and the word of it, of the i-th pack.
  template <typename Context>
  MP_DEVICE static int Row(Context& c, int i) {
    if constexpr (kAlongDepth) return (c.thread() + i * kTileThreads) / 4;
    if constexpr (sizeof(T) == 2) return c.thread() / kTileWords * kPack<T>;
    return (c.thread() + i * kTileThreads) / kTileWords * kPack<T>;
  }
  template <typename Context>
  MP_DEVICE static int Word(Context& c) {
    return c.thread() % kTileWords;
  }
  // The first `count` elements of a pack; the others are 0.
  template <typename Context>
  MP_DEVICE static Words ReadWords(Context& c, const T* p, int count) {
    Words words = {};
    if constexpr (kN > 1) {
      if (count > 0) words = c.Load(reinterpret_cast<const Words*>(p));
    } else {
      MP_UNROLL
      for (int w = 0; w < 4; ++w) {
        const int first = w * Tile::kEach;
        if constexpr (sizeof(T) == 4) {
          if (first < count) words.v[w] = WordOf(c.Load(p + first));
        } else {
          const T a = first < count ? c.Load(p + first) : T{};
          const T b = first + 1 < count ? c.Load(p + first + 1) : T{};
          words.v[w] = WordOf(a, b);
        }
      }
    }
    return words;
  }
};

// A thread's results: on tensor cores a warp makes 64 x 32 of them, in tiles of 16 x 8.
template <typename T>
struct TileSums {
  static constexpr int kAcross = 2;  // neighbours in a row
  float sums[4][4][4] = {};

  template <typename Context>
  MP_DEVICE static int FirstRow(Context& c) {
    return c.warp() % 2 * 64;
  }
  template <typename Context>
  MP_DEVICE static int FirstColumn(Context& c) {
    return c.warp() / 2 * 32;
  }
  // Whether any of the warp's results is wanted.
  template <typename Context>
  MP_DEVICE static bool Wanted(Context& c, int rows, int columns) {
    return FirstRow(c) < rows && FirstColumn(c) < columns;
  }

  template <typename Context, typename Array>
  MP_DEVICE void Multiply(Context& c, const Array& tile, int rows_at, int columns_at) {
    constexpr int kStride = TileOf<T>::kStride;
    const int g = c.lane() / 4, t = c.lane() % 4;
    MP_UNROLL
    for (int word = 0; word < kTileWords; word += 8) {
      uint32_t b[4][2];
      MP_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int at = columns_at + (FirstColumn(c) + 8 * j + g) * kStride + word + t;
        b[j][0] = tile.Get(at);
        b[j][1] = tile.Get(at + 4);
      }
      MP_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int at = rows_at + (FirstRow(c) + 16 * i + g) * kStride + word + t;
        const uint32_t a[4] = {tile.Get(at), tile.Get(at + 8 * kStride), tile.Get(at + 4),
                               tile.Get(at + 8 * kStride + 4)};
        MP_UNROLL
        for (int j = 0; j < 4; ++j) c.template MultiplyTiles<T>(a, b[j], sums[i][j]);
      }
    }
  }

  // fn(row, column, sums of kAcross neighbours) for each.
  template <typename Context, typename Fn>
  MP_DEVICE void ForEach(Context& c, const Fn& fn) const {
    MP_UNROLL
    for (int i = 0; i < 16; ++i) {
      MP_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float(&four)[4] = sums[i / 4][i % 4];
        const float two[2] = {four[2 * half], four[2 * half + 1]};
        fn(FirstRow(c) + i / 4 * 16 + c.lane() / 4 + 8 * half,
           FirstColumn(c) + i % 4 * 8 + c.lane() % 4 * 2, two);
      }
    }
  }
};

// fp32: 8 x 8 results a thread, 16 rows and columns apart.
template <>
struct TileSums<float> {
  static constexpr int kAcross = 1;
  float sums[8][8] = {};

  template <typename Context>
  MP_DEVICE static bool Wanted(Context&, int, int) {
    return true;
  }

  template <typename Context, typename Array>
  MP_DEVICE void Multiply(Context& c, const Array& tile, int rows_at, int columns_at) {
    constexpr int kStride = TileOf<float>::kStride;
    const int row = c.thread() / 16, column = c.thread() % 16;
    for (int word = 0; word < kTileWords; ++word) {
      float a[8], b[8];
      MP_UNROLL
      for (int i = 0; i < 8; ++i) {
        a[i] = std::bit_cast<float>(tile.Get(rows_at + (row + 16 * i) * kStride + word));
        b[i] = std::bit_cast<float>(tile.Get(columns_at + (column + 16 * i) * kStride + word));
      }
      MP_UNROLL
      for (int i = 0; i < 64; ++i)
        sums[i / 8][i % 8] = fmaf(a[i / 8], b[i % 8], sums[i / 8][i % 8]);
    }
  }

  template <typename Context, typename Fn>
  MP_DEVICE void ForEach(Context& c, const Fn& fn) const {
    MP_UNROLL
    for (int i = 0; i < 64; ++i) {
      const float one[1] = {sums[i / 8][i % 8]};
      fn(c.thread() / 16 + i / 8 * 16, c.thread() % 16 + i % 8 * 16, one);
    }
  }
};

// The block's tile of a product: of the rows of `a` and of those of `b`, which are the columns.
template <typename T, int kN, bool kAAlongDepth, bool kBAlongDepth>
struct BlockProduct {
  using Tile = TileOf<T>;
  TileSums<T> sums;
  int begun = 0;  // tiles; they lie in two places in turn

  template <typename Context>
  MP_DEVICE void Add(Context& c, const Factor<T>& a, const Factor<T>& b, int depth) {
    if (depth <= 0) return;
    auto words = c.template Shared<uint32_t, 4 * Tile::kWords, 0>();
    TilePart<T, kN, kAAlongDepth> next_a;
    TilePart<T, kN, kBAlongDepth> next_b;
    next_a.Load(c, a, 0, depth);
    next_b.Load(c, b, 0, depth);
    for (int first = 0; first < depth; first += Tile::kDepth) {
      const int at = begun++ % 2 * 2 * Tile::kWords;
      next_a.Store(c, words, at);
      next_b.Store(c, words, at + Tile::kWords);
      // Nobody still reads this place: what lay in it was read before the barrier of the last one.
      c.Sync();
      if (first + Tile::kDepth < depth) {
        next_a.Load(c, a, first + Tile::kDepth, depth);
        next_b.Load(c, b, first + Tile::kDepth, depth);
      }
      if (sums.Wanted(c, a.rows, b.rows)) sums.Multiply(c, words, at, at + Tile::kWords);
    }
  }

  // To to[row, column] of the first rows and columns.
  template <typename Context, typename U>
  MP_DEVICE void Write(Context& c, U* to, int64_t stride, int rows, int columns, bool add) const {
    sums.ForEach(c, [&](int row, int column, const auto& values) {
      constexpr int kAcross = TileSums<T>::kAcross;
      if (row >= rows || column >= columns) return;
      U* at = to + row * stride + column;
      // Where rows begin anywhere, so do pairs, and the last one may be half.
      MP_UNROLL
      for (int i = 0; i<kAcross; i += kN> 1 ? kAcross : 1) {
        constexpr int kAtOnce = kN > 1 ? kAcross : 1;
        if (column + i >= columns) return;
        float out[kAtOnce];
        MP_UNROLL
        for (int j = 0; j < kAtOnce; ++j) out[j] = values[i + j];
        if (add) {
          const auto before = Read<kAtOnce>(c, at + i);
          MP_UNROLL
          for (int j = 0; j < kAtOnce; ++j) out[j] += before.v[j];
        }
        cuda::Write(c, at + i, out);
      }
    });
  }
};

MP_DEVICE int LeftOfTile(int64_t all, int64_t first) {
  return all - first < kTileRows ? static_cast<int>(all - first) : kTileRows;
}

// While one block waits for memory, another one multiplies. Of fp32 the compiler does that by
// itself, but spills registers where rows begin anywhere. 0: not told.
template <typename T, int kN>
inline constexpr int kTileBlocks = sizeof(T) == 2 ? 2 : (kN == 1 ? 1 : 0);

// A tile of rows and columns a block. The tiles of segment i begin with number i + offsets[i] /
// kTileRows: between two such there is always room for those of a segment, and which segment a tile
// is of is found without counting. Some tiles are empty. Blocks that run at once share rows and
// weights: they have all columns of kTogether tiles of rows, then of the next.
template <typename T, int kN, bool kForward>
struct GroupedRowsKernel {
  static constexpr int kThreads = kTileThreads;
  static constexpr int kBlocks = kTileBlocks<T, kN>;
  static constexpr int64_t kTogether = 8;
  GroupedRows<T> p;

  Grid grid() const { return {.x = Tiles() * CeilDiv(p.columns, kTileRows)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const Place place = PlaceOf(c.block());
    const int64_t segment = SegmentOf(c, place.tile), column = place.column * kTileRows;
    const int64_t first =
        c.Load(p.segments.offsets + segment) + (place.tile - FirstTile(c, segment)) * kTileRows;
    const int64_t end = c.Load(p.segments.offsets + segment + 1);
    if (first >= end) return;
    const T* own = c.Load(p.weights + segment % p.segments.experts);
    const int rows = LeftOfTile(end, first), columns = LeftOfTile(p.columns, column);
    const auto depth = static_cast<int>(p.depth), across = static_cast<int>(p.columns);
    BlockProduct<T, kN, true, kForward> product;
    product.Add(c, {p.x + first * p.x_stride, static_cast<int>(p.x_stride), rows},
                kForward ? Factor<T>{own + column * p.depth, depth, columns}
                         : Factor<T>{own + column, across, columns},
                depth);
    product.Write(c, p.y + first * p.y_stride + column, p.y_stride, rows, columns, p.add);
  }

 private:
  struct Place {
    int64_t tile, column;
  };

  MP_BOTH int64_t Tiles() const { return p.segments.rows / kTileRows + p.segments.segments; }
  MP_DEVICE Place PlaceOf(int64_t block) const {
    const int64_t of_group = kTogether * ((p.columns + kTileRows - 1) / kTileRows);
    const int64_t first = block / of_group * kTogether, rest = block % of_group;
    const int64_t tiles = Tiles() - first < kTogether ? Tiles() - first : kTogether;
    return {first + rest % tiles, rest / tiles};
  }
  template <typename Context>
  MP_DEVICE int64_t FirstTile(Context& c, int64_t segment) const {
    return c.Load(p.segments.offsets + segment) / kTileRows + segment;
  }
  // The last one that begins with this tile or before: a warp looks at 32 places at once.
  template <typename Context>
  MP_DEVICE int64_t SegmentOf(Context& c, int64_t tile) const {
    int64_t low = 0, high = p.segments.segments;
    while (high - low > 1) {
      const int64_t step = (high - low + kWarp - 1) / kWarp, at = low + c.lane() * step;
      const int before = WarpSum(c, at < high && FirstTile(c, at) <= tile ? 1 : 0);
      low += (before - 1) * step;
      high = low + step < high ? low + step : high;
    }
    return low;
  }
};

// A tile of an expert's gradient a block, over all its rows in their order.
template <typename T, int kN>
struct GroupedWeightsKernel {
  static constexpr int kThreads = kTileThreads;
  static constexpr int kBlocks = kTileBlocks<T, kN>;
  GroupedWeights<T> p;

  Grid grid() const {
    return {.x = CeilDiv(p.height, kTileRows) * CeilDiv(p.width, kTileRows),
            .y = p.segments.experts};
  }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t across = (p.width + kTileRows - 1) / kTileRows;
    const int64_t row = c.block() / across * kTileRows, column = c.block() % across * kTileRows;
    const int rows = LeftOfTile(p.height, row), columns = LeftOfTile(p.width, column);
    BlockProduct<T, kN, false, false> product;
    for (int64_t s = c.block_y(); s < p.segments.segments; s += p.segments.experts) {
      const int32_t first = c.Load(p.segments.offsets + s);
      product.Add(c, {p.dy + first * p.dy_stride + row, static_cast<int>(p.dy_stride), rows},
                  {p.x + first * p.x_stride + column, static_cast<int>(p.x_stride), columns},
                  c.Load(p.segments.offsets + s + 1) - first);
    }
    product.Write(c, c.Load(p.gradients + c.block_y()) + row * p.width + column, p.width, rows,
                  columns, p.add);
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_EXPERTS_GROUPED_PRODUCT_CUDA_KERNEL_INL_H_
