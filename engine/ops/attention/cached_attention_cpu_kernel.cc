#include "engine/ops/attention/cached_attention_cpu_kernel.h"

#include <algorithm>

#include "engine/kernels/cpu/parallel.h"
#include "engine/kernels/cpu/tile_product.h"
#include "engine/ops/attention/attention_cpu_kernel.h"
#include "engine/ops/attention/attention_layout_contract.h"

#ifndef MILEPOST_ENGINE_KERNELS_CPU_CACHED_ATTENTION_SIZES_
#define MILEPOST_ENGINE_KERNELS_CPU_CACHED_ATTENTION_SIZES_  // once, not once per target
namespace milepost::kernels {
namespace {

struct CacheLayout {
  explicit CacheLayout(const CachedAttentionShape& shape)
      : head(shape.positions * shape.head_dim), values(shape.kv_heads * head) {}
  int64_t head;    // elements of one head's keys
  int64_t values;  // from a head's keys to its values
};

constexpr int64_t kMaxDim = 256;
constexpr int64_t kQueries = 4;  // heads of queries that read a head of keys at once

}  // namespace
}  // namespace milepost::kernels
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ops/attention/cached_attention_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/ops/attention/attention_softmax_cpu_kernel-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

// ---- several rows: as the forward, tile by tile of the cache ----

// `count` rows of the cache as a tile of keys and a tile of values; zeros up to whole blocks.
template <typename T, typename Stored>
HWY_INLINE void PackTile(const Stored* keys, const Stored* values, int64_t count, int64_t dim,
                         const ForwardArrays<T>& w) {
  for (int64_t i = 0; i < count; i += kBlock) {
    const int64_t valid = std::min(kBlock, count - i);
    CopyRows(keys + i * dim, dim, valid, kBlock, dim, w.keys + i * dim);
    CopyRows(values + i * dim, dim, valid, kBlock, dim, w.rows);
    PairRows(w.rows, kBlock, dim, dim, w.values + i * dim);
  }
}

// Queries [block * kBlock, ...) of one head.
template <typename Stored>
void QueryBlock(const CachedAttentionShape& shape, int64_t first, int64_t rows, int64_t head,
                int64_t block, const Stored* qkv, const Stored* cache, Stored* out,
                void* workspace) {
  using T = PackedAs<Stored>;
  const AttentionSizes s(KeyTileOf(shape));
  const CacheLayout layout(shape);
  const ForwardArrays<T> w(s, Carver(workspace));
  const TileProduct product = ChooseTileProduct(kDTypeOf<T>);
  const int64_t steps = s.dim / kPair<T>;
  const int64_t row = block * kBlock;
  const int64_t valid = std::min(kBlock, rows - row);
  CopyRows(qkv + row * s.row + head * s.dim, s.row, valid, kBlock, s.dim, w.rows);
  TransposeWords(reinterpret_cast<const uint32_t*>(w.rows), steps, kBlock, steps,
                 reinterpret_cast<uint32_t*>(w.query), kBlock);
  const Stored* keys = cache + head / s.group * layout.head;
  const QueryBounds bounds(first + row, valid, shape.window);
  const int64_t begin = bounds.begin[0], end = first + row + valid;
  Running running;
  for (int64_t key = begin; key < end; key += kKeyTile) {
    const int64_t count = std::min(kKeyTile, end - key);
    const int64_t padded = (count + kBlock - 1) / kBlock * kBlock;
    PackTile(keys + key * s.dim, keys + layout.values + key * s.dim, count, s.dim, w);
    const TileOperands scores = {w.keys, steps, 1, w.query, kBlock, w.scores, kBlock};
    product(scores, padded, kBlock, steps, false);
    for (int64_t i = 0; i < padded; i += kBlock) {
      const bool seen_by_first = key + i + kBlock <= bounds.end[0];
      const bool seen_by_last = bounds.begin[kBlock - 1] <= key + i;
      if (seen_by_first && seen_by_last) continue;  // the whole block by every query
      MaskKeys(bounds, key + i, w.scores + i * kBlock);
    }
    SoftmaxStep(w.scores, padded, s.scale, s.dim, key == begin, w.weights, w.out, &running);
    const TileOperands weighted = {w.values, 1, s.dim, w.weights, kBlock, w.out, kBlock};
    product(weighted, s.dim, kBlock, padded / kPair<T>, key != begin);
  }
  WriteBlock(s, w, running, valid, out + row * s.channels + head * s.dim, nullptr);
}

// ---- one row: every key and value is read once, as it lies ----

struct RowArrays {
  alignas(64) float query[kQueries][kMaxDim];  // in base 2, scaled
  alignas(64) float scores[kQueries][kKeyTile];
  alignas(64) float out[kQueries][kMaxDim];
  float max[kQueries];
  float sum[kQueries];
};

// scores[query][key] of kKeys keys.
template <int kKeys, int kHeads, typename T>
HWY_INLINE void Scores(const T* keys, int64_t dim, int64_t key, RowArrays& a) {
  const DF d;
  VF sum[kHeads][kKeys];
  for (int h = 0; h < kHeads; ++h) {
    for (int i = 0; i < kKeys; ++i) sum[h][i] = hn::Zero(d);
  }
  ForVectors(dim, [&](int64_t at, int64_t n) MP_SIMD {
#pragma GCC unroll 4
    for (int i = 0; i < kKeys; ++i) {
      const VF k = LoadUpTo(d, keys + i * dim + at, n);
#pragma GCC unroll 4
      for (int h = 0; h < kHeads; ++h) {
        sum[h][i] = hn::MulAdd(LoadUpTo(d, a.query[h] + at, n), k, sum[h][i]);
      }
    }
  });
  for (int h = 0; h < kHeads; ++h) {
    for (int i = 0; i < kKeys; ++i) {
      a.scores[h][key + i] = hn::GetLane(hn::SumOfLanes(d, sum[h][i]));
    }
  }
}

// Scores become weights; what `out` and `sum` hold is rescaled.
HWY_INLINE void WeighRow(int64_t count, int64_t dim, float* scores, float* out, float* max,
                         float* sum) {
  const DF d;
  VF highest = hn::Set(d, *max);
  for (int64_t i = count; i < kKeyTile && i % kMaxLanes != 0; ++i) scores[i] = -HUGE_VALF;
  for (int64_t i = 0; i < count; i += hn::Lanes(d)) {
    highest = hn::Max(highest, hn::Load(d, scores + i));
  }
  highest = hn::MaxOfLanes(d, highest);
  const VF shrink = FastExp2(d, hn::Sub(hn::Set(d, *max), highest));
  VF total = hn::Zero(d);
  for (int64_t i = 0; i < count; i += hn::Lanes(d)) {
    const VF p = FastExp2(d, hn::Sub(hn::Load(d, scores + i), highest));
    total = hn::Add(total, p);
    hn::Store(p, d, scores + i);
  }
  for (int64_t i = 0; i < dim; i += hn::Lanes(d)) {
    hn::Store(hn::Mul(hn::Load(d, out + i), shrink), d, out + i);
  }
  *max = hn::GetLane(highest);
  *sum = *sum * hn::GetLane(shrink) + hn::GetLane(hn::SumOfLanes(d, total));
}

// out += the weighted values, of kVectors vectors of a head from element `at` on; `n` elements in
// the last one.
template <int kVectors, int kHeads, typename T>
HWY_INLINE void AddValues(const T* values, int64_t count, int64_t dim, int64_t at, int64_t n,
                          RowArrays& a) {
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  VF sum[kHeads][kVectors];
  for (int h = 0; h < kHeads; ++h) {
    for (int j = 0; j < kVectors; ++j) sum[h][j] = hn::Load(d, a.out[h] + at + j * lanes);
  }
  for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      const VF v = LoadUpTo(d, values + i * dim + at + j * lanes, j + 1 < kVectors ? lanes : n);
#pragma GCC unroll 4
      for (int h = 0; h < kHeads; ++h) {
        sum[h][j] = hn::MulAdd(hn::Set(d, a.scores[h][i]), v, sum[h][j]);
      }
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int j = 0; j < kVectors; ++j) hn::Store(sum[h][j], d, a.out[h] + at + j * lanes);
  }
}

// kHeads heads of queries that read the same head of keys, which has `seen` of them.
template <int kHeads, typename T>
HWY_INLINE void Row(const T* query, const T* keys, const T* values, int64_t seen, int64_t dim,
                    float scale, T* out) {
  constexpr int kVectors = 4;
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  RowArrays a;
  for (int h = 0; h < kHeads; ++h) {
    for (int64_t i = 0; i < dim; ++i) a.query[h][i] = ToFloat(query[h * dim + i]) * scale;
    std::fill_n(a.out[h], kMaxDim, 0.0F);
    a.max[h] = kLeastScore;
    a.sum[h] = 0;
  }
  for (int64_t key = 0; key < seen; key += kKeyTile) {
    const int64_t count = std::min(kKeyTile, seen - key);
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) Scores<4, kHeads>(keys + (key + i) * dim, dim, i, a);
    for (; i < count; ++i) Scores<1, kHeads>(keys + (key + i) * dim, dim, i, a);
    for (int h = 0; h < kHeads; ++h) {
      WeighRow(count, dim, a.scores[h], a.out[h], &a.max[h], &a.sum[h]);
    }
    int64_t at = 0;
    for (; at + kVectors * lanes <= dim; at += kVectors * lanes) {
      AddValues<kVectors, kHeads>(values + key * dim, count, dim, at, lanes, a);
    }
    for (; at < dim; at += lanes) {
      AddValues<1, kHeads>(values + key * dim, count, dim, at, std::min(lanes, dim - at), a);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    const VF inverse = hn::Set(d, 1.0F / a.sum[h]);
    ForVectors(dim, [&](int64_t at, int64_t n) MP_SIMD {
      StoreUpTo(hn::Mul(hn::Load(d, a.out[h] + at), inverse), d, out + h * dim + at, n);
    });
  }
}

// Heads of queries [begin, end) of the one row at position `first`; they share a head of keys.
template <typename T>
void RowOfHeads(const CachedAttentionShape& shape, int64_t first, int64_t begin, int64_t end,
                const T* qkv, const T* cache, T* out) {
  const CacheLayout layout(shape);
  const int64_t dim = shape.head_dim;
  const int64_t seen = shape.window == 0 ? first + 1 : std::min(first + 1, shape.window);
  const int64_t head = begin / (shape.heads / shape.kv_heads);
  const T* keys = cache + head * layout.head + (first + 1 - seen) * dim;
  const T* values = keys + layout.values;
  const float scale = static_cast<float>(kLog2E / std::sqrt(static_cast<double>(dim)));
  int64_t h = begin;
  for (; h + kQueries <= end; h += kQueries) {
    Row<kQueries>(qkv + h * dim, keys, values, seen, dim, scale, out + h * dim);
  }
  for (; h < end; ++h) Row<1>(qkv + h * dim, keys, values, seen, dim, scale, out + h * dim);
}

}  // namespace

void CachedBlockF32(const CachedAttentionShape& shape, int64_t first, int64_t rows, int64_t head,
                    int64_t block, const float* qkv, const float* cache, float* out,
                    void* workspace) {
  QueryBlock(shape, first, rows, head, block, qkv, cache, out, workspace);
}
void CachedBlockBf16(const CachedAttentionShape& shape, int64_t first, int64_t rows, int64_t head,
                     int64_t block, const bf16* qkv, const bf16* cache, bf16* out,
                     void* workspace) {
  QueryBlock(shape, first, rows, head, block, qkv, cache, out, workspace);
}
void CachedBlockF16(const CachedAttentionShape& shape, int64_t first, int64_t rows, int64_t head,
                    int64_t block, const f16* qkv, const f16* cache, f16* out, void* workspace) {
  QueryBlock(shape, first, rows, head, block, qkv, cache, out, workspace);
}
void CachedRowF32(const CachedAttentionShape& shape, int64_t first, int64_t begin, int64_t end,
                  const float* qkv, const float* cache, float* out) {
  RowOfHeads(shape, first, begin, end, qkv, cache, out);
}
void CachedRowBf16(const CachedAttentionShape& shape, int64_t first, int64_t begin, int64_t end,
                   const bf16* qkv, const bf16* cache, bf16* out) {
  RowOfHeads(shape, first, begin, end, qkv, cache, out);
}
void CachedRowF16(const CachedAttentionShape& shape, int64_t first, int64_t begin, int64_t end,
                  const f16* qkv, const f16* cache, f16* out) {
  RowOfHeads(shape, first, begin, end, qkv, cache, out);
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(CachedBlockF32);
HWY_EXPORT(CachedBlockBf16);
HWY_EXPORT(CachedBlockF16);
HWY_EXPORT(CachedRowF32);
HWY_EXPORT(CachedRowBf16);
HWY_EXPORT(CachedRowF16);

namespace {

template <typename T>
void Remember(const CachedAttentionShape& shape, int64_t first, int64_t rows, const T* qkv,
              T* cache) {
  const CacheLayout layout(shape);
  const int64_t dim = shape.head_dim;
  const int64_t heads = 2 * shape.kv_heads;  // of keys, then of values, in both
  const int64_t width = (shape.heads + heads) * dim;
  ParallelFor(0, rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* from = qkv + row * width + shape.heads * dim;
      T* to = cache + (first + row) * dim;
      for (int64_t h = 0; h < heads; ++h) std::copy_n(from + h * dim, dim, to + h * layout.head);
    }
  });
}

// Heads that share keys are split only where threads would idle: each part reads them again.
int64_t PartsOfGroups(const CachedAttentionShape& shape, int64_t rows) {
  const int64_t groups = shape.kv_heads * rows;
  const int64_t wanted = (MaxThreads() + groups - 1) / groups;
  return std::clamp<int64_t>(wanted, 1, shape.heads / shape.kv_heads);
}

// Part `task` of a row's heads, of `parts` for each head of keys.
template <typename T, typename Row>
void AttendPart(Row one, const CachedAttentionShape& shape, int64_t position, int64_t task,
                int64_t parts, const T* qkv, const T* cache, T* out) {
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t head = task / parts * group;
  const int64_t part = task % parts;
  one(shape, position, head + group * part / parts, head + group * (part + 1) / parts, qkv, cache,
      out);
}

template <typename T, typename Block, typename Row>
void Attend(Block block, Row one, const CachedAttentionShape& shape, int64_t first, int64_t rows,
            const T* qkv, T* cache, T* out, void* workspace) {
  Remember(shape, first, rows, qkv, cache);
  if (rows == 1) {
    const int64_t parts = PartsOfGroups(shape, 1);
    ParallelTasks(shape.kv_heads * parts, [&](int64_t task, int) {
      AttendPart(one, shape, first, task, parts, qkv, cache, out);
    });
    return;
  }
  const int64_t blocks = (rows + kBlock - 1) / kBlock;
  const int64_t bytes = CachedAttentionWorkspaceBytes(shape, rows, kDTypeOf<T>, 1);
  ParallelTasks(shape.heads * blocks, [&](int64_t task, int thread) {
    block(shape, first, rows, task / blocks, task % blocks, qkv, cache, out,
          static_cast<char*>(workspace) + thread * bytes);
  });
}

template <typename T, typename Row>
void AttendRows(Row one, const CachedAttentionShape& shape, const CachedRows& rows, const T* qkv,
                T* caches, T* out) {
  const int64_t width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  const int64_t out_width = shape.heads * shape.head_dim;
  for (int64_t row = 0; row < rows.count; ++row) {
    if (rows.texts[row] < 0) {
      std::fill_n(out + row * out_width, out_width, T{});
    } else {
      Remember(shape, rows.positions[row], 1, qkv + row * width,
               caches + rows.texts[row] * shape.TextElements());
    }
  }
  const int64_t parts = PartsOfGroups(shape, rows.count);
  const int64_t tasks = shape.kv_heads * parts;  // of a row
  ParallelTasks(rows.count * tasks, [&](int64_t task, int) {
    const int64_t row = task / tasks;
    if (rows.texts[row] < 0) return;
    AttendPart<T>(one, shape, rows.positions[row], task % tasks, parts, qkv + row * width,
                  caches + rows.texts[row] * shape.TextElements(), out + row * out_width);
  });
}

}  // namespace

template <>
void CachedAttention(const CachedAttentionShape& shape, int64_t first, int64_t rows,
                     const float* qkv, float* cache, float* out, void* workspace) {
  Attend(HWY_DYNAMIC_DISPATCH(CachedBlockF32), HWY_DYNAMIC_DISPATCH(CachedRowF32), shape, first,
         rows, qkv, cache, out, workspace);
}
template <>
void CachedAttention(const CachedAttentionShape& shape, int64_t first, int64_t rows,
                     const bf16* qkv, bf16* cache, bf16* out, void* workspace) {
  Attend(HWY_DYNAMIC_DISPATCH(CachedBlockBf16), HWY_DYNAMIC_DISPATCH(CachedRowBf16), shape, first,
         rows, qkv, cache, out, workspace);
}
template <>
void CachedAttention(const CachedAttentionShape& shape, int64_t first, int64_t rows, const f16* qkv,
                     f16* cache, f16* out, void* workspace) {
  Attend(HWY_DYNAMIC_DISPATCH(CachedBlockF16), HWY_DYNAMIC_DISPATCH(CachedRowF16), shape, first,
         rows, qkv, cache, out, workspace);
}

template <>
void CachedRowsAttention(const CachedAttentionShape& shape, const CachedRows& rows,
                         const float* qkv, float* caches, float* out) {
  AttendRows(HWY_DYNAMIC_DISPATCH(CachedRowF32), shape, rows, qkv, caches, out);
}
template <>
void CachedRowsAttention(const CachedAttentionShape& shape, const CachedRows& rows, const bf16* qkv,
                         bf16* caches, bf16* out) {
  AttendRows(HWY_DYNAMIC_DISPATCH(CachedRowBf16), shape, rows, qkv, caches, out);
}
template <>
void CachedRowsAttention(const CachedAttentionShape& shape, const CachedRows& rows, const f16* qkv,
                         f16* caches, f16* out) {
  AttendRows(HWY_DYNAMIC_DISPATCH(CachedRowF16), shape, rows, qkv, caches, out);
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
