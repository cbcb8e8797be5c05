// The kernels behind attention_cuda_kernel.h. Queries (or keys) of a tile each have kD / 16
// threads, with 16 elements of the head each, in registers; the keys (or queries) that they meet
// come through shared memory, kTile at a time. kD is head_dim, rounded up; what is missing is 0.
#ifndef MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_CUDA_KERNEL_INL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "common/status_macros.h"
#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/attention/attention_contract.h"

namespace milepost::kernels::cuda {

using Four = Pack<float, 4>;
inline constexpr int kTile = 32;

// Of a packed row.
struct HeadLayout {
  int64_t batch, sequence, heads, kv_heads, head_dim;
  bool causal;
  int64_t window;  // keys that a query sees, its own among them; at most the sequence
  QueryPart queries;
  const int32_t* documents;

  // Causal: whether a key is not after a query, and in its window. The difference of a key after it
  // wraps around to a large unsigned number, so that one comparison says both.
  MP_BOTH bool InReach(int64_t query, int64_t key) const {
    return !causal || static_cast<uint32_t>(query - key) < static_cast<uint32_t>(window);
  }
  MP_BOTH int64_t row() const { return (heads + 2 * kv_heads) * head_dim; }
  MP_BOTH int64_t query(int64_t b, int64_t h) const { return b * sequence * row() + h * head_dim; }
  MP_BOTH int64_t key(int64_t b, int64_t g) const {
    return b * sequence * row() + (heads + g) * head_dim;
  }
  MP_BOTH int64_t value(int64_t b, int64_t g) const { return key(b, g) + kv_heads * head_dim; }
  MP_BOTH int64_t out_row() const { return heads * head_dim; }
  MP_BOTH int64_t out(int64_t b, int64_t h) const {
    return b * sequence * out_row() + h * head_dim;
  }

  template <typename Context>
  MP_DEVICE int Document(Context& c, int64_t b, int64_t t) const {
    if (documents == nullptr) return 0;
    return c.Load(documents + b * sequence + (t < sequence ? t : sequence - 1));
  }
};

inline HeadLayout LayoutOf(const AttentionShape& s, const int32_t* documents) {
  return {s.batch,
          s.sequence,
          s.heads,
          s.kv_heads == 0 ? s.heads : s.kv_heads,
          s.head_dim,
          s.causal,
          s.window == 0 || s.window > s.sequence ? s.sequence : s.window,
          s.queries,
          documents};
}

// What the kernels share, for heads of up to kD elements.
template <typename T, int kD>
struct AttentionTiles {
  static constexpr int kThreads = 256;
  static constexpr int kParts = kD / 16;           // threads of a row
  static constexpr int kRows = kThreads / kParts;  // of a block
  static constexpr int kPacks = kD / 4;            // of a row
  // So that a part has all queries of a tile or none.
  static_assert(QueryPart::kBlock % kRows == 0 && QueryPart::kBlock % kTile == 0);

  // A thread's 16 elements of a row: packs part, part + kParts, ...
  struct Share {
    Four v[4];
  };

  template <typename Context>
  MP_DEVICE static int Part(Context& c) {
    return c.thread() % kParts;
  }
  template <typename Context>
  MP_DEVICE static Share LoadShare(Context& c, const T* row, bool valid, int64_t head_dim) {
    Share share = {};
    MP_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int at = (i * kParts + Part(c)) * 4;
      if (!valid || at >= head_dim) continue;
      const auto four = Read<4>(c, row + at);
      MP_UNROLL
      for (int k = 0; k < 4; ++k) share.v[i].v[k] = four.v[k];
    }
    return share;
  }
  template <typename Context>
  MP_DEVICE static void StoreShare(Context& c, T* row, const Share& share, int64_t head_dim) {
    MP_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int at = (i * kParts + Part(c)) * 4;
      if (at < head_dim) Write(c, row + at, share.v[i].v);
    }
  }

  // Rows [first, first + kTile) of a head into tile[offset...]; those from `end` on are 0.
  template <typename Context, typename Array>
  MP_DEVICE static void LoadTile(Context& c, const T* head, int64_t stride, int64_t first,
                                 int64_t end, int64_t head_dim, const Array& tile, int offset) {
    for (int i = c.thread(); i < kTile * kPacks; i += kThreads) {
      const int64_t row = first + i / kPacks;
      const int at = i % kPacks * 4;
      Four four = {};
      if (row < end && at < head_dim) {
        const auto values = Read<4>(c, head + row * stride + at);
        MP_UNROLL
        for (int k = 0; k < 4; ++k) four.v[k] = values.v[k];
      }
      tile.Set(offset + i, four);
    }
  }
  template <typename Context, typename Array>
  MP_DEVICE static Share TileShare(Context& c, const Array& tile, int offset, int row) {
    Share share;
    MP_UNROLL
    for (int i = 0; i < 4; ++i) {
      share.v[i] = tile.Get(offset + row * kPacks + i * kParts + Part(c));
    }
    return share;
  }

  // The whole row's; every thread of the row gets it.
  template <typename Context>
  MP_DEVICE static float Dot(Context& c, const Share& a, const Share& b) {
    float sum = 0;
    MP_UNROLL
    for (int i = 0; i < 16; ++i) sum = fmaf(a.v[i / 4].v[i % 4], b.v[i / 4].v[i % 4], sum);
    MP_UNROLL
    for (int mask = kParts / 2; mask > 0; mask /= 2) sum += c.ShuffleXor(sum, mask);
    return sum;
  }
  // sum += factor * a.
  MP_DEVICE static void AddTo(Share& sum, float factor, const Share& a) {
    MP_UNROLL
    for (int i = 0; i < 16; ++i) {
      sum.v[i / 4].v[i % 4] = fmaf(factor, a.v[i / 4].v[i % 4], sum.v[i / 4].v[i % 4]);
    }
  }
  MP_DEVICE static void Scale(Share& share, float factor) {
    MP_UNROLL
    for (int i = 0; i < 16; ++i) share.v[i / 4].v[i % 4] *= factor;
  }

  static constexpr int64_t kSharedBytes = 2 * kTile * kD * static_cast<int64_t>(sizeof(float));
};

// A tile of queries, of one head of one sequence, and the keys that it may see.
struct QueryTile {
  int64_t b, h, first, query;
  int document = 0;        // of this thread's query
  int64_t keys_begin = 0;  // a multiple of kTile
  int64_t keys_end = 0;

  // All threads of a block get the same range.
  template <int kRows, int kParts, typename Context>
  MP_DEVICE static QueryTile Of(Context& c, const HeadLayout& a) {
    QueryTile tile = {};
    tile.b = c.block_y() / a.heads;
    tile.h = c.block_y() % a.heads;
    tile.first = c.block() * kRows;
    tile.query = tile.first + c.thread() / kParts;
    const int64_t last = tile.first + kRows < a.sequence ? tile.first + kRows : a.sequence;
    tile.document = a.Document(c, tile.b, tile.query);
    const int low = a.Document(c, tile.b, tile.first), high = a.Document(c, tile.b, last - 1);
    tile.keys_end = a.causal ? last : a.sequence;
    const int64_t oldest = tile.first - a.window + 1;  // that any of the queries sees
    if (a.causal && oldest > 0) tile.keys_begin = oldest / kTile * kTile;
    while (tile.keys_begin + kTile < tile.keys_end &&
           a.Document(c, tile.b, tile.keys_begin + kTile - 1) < low) {
      tile.keys_begin += kTile;
    }
    int64_t end = tile.keys_begin;
    while (end < tile.keys_end && a.Document(c, tile.b, end) <= high) end += kTile;
    if (end < tile.keys_end) tile.keys_end = end;
    return tile;
  }
};

template <typename T, int kD>
struct AttentionForwardKernel {
  using Tiles = AttentionTiles<T, kD>;
  using Share = typename Tiles::Share;
  static constexpr int kThreads = Tiles::kThreads;
  HeadLayout a;
  const T* qkv;
  float scale;
  T* out;
  float* lse;

  Grid grid() const {
    return {CeilDiv(a.sequence, Tiles::kRows), a.batch * a.heads, Tiles::kSharedBytes};
  }

  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const auto tile = c.template DynamicShared<Four>();
    const auto ids = c.template Shared<int, kTile, 0>();
    const auto at = QueryTile::Of<Tiles::kRows, Tiles::kParts>(c, a);
    const int64_t g = at.h / (a.heads / a.kv_heads);
    const bool valid = at.query < a.sequence;
    if (!a.queries.Owns(at.first)) {
      if (valid) StoreQuery(c, at, Share{}, 0);
      return;
    }
    Share q =
        Tiles::LoadShare(c, qkv + a.query(at.b, at.h) + at.query * a.row(), valid, a.head_dim);
    Tiles::Scale(q, scale);
    Share sum = {};
    float max = -INFINITY, weight = 0;
    for (int64_t first = at.keys_begin; first < at.keys_end; first += kTile) {
      c.Sync();
      Tiles::LoadTile(c, qkv + a.key(at.b, g), a.row(), first, a.sequence, a.head_dim, tile, 0);
      Tiles::LoadTile(c, qkv + a.value(at.b, g), a.row(), first, a.sequence, a.head_dim, tile,
                      kTile * Tiles::kPacks);
      if (c.thread() < kTile) ids.Set(c.thread(), a.Document(c, at.b, first + c.thread()));
      c.Sync();
      for (int from = 0; from < kTile; from += kScores) {
        AddKeys(c, tile, ids, at, first, from, q, sum, max, weight);
      }
    }
    if (!valid) return;
    Tiles::Scale(sum, 1.0f / weight);
    StoreQuery(c, at, sum, max + logf(weight));
  }

 private:
  static constexpr int kScores = 8;  // at a time: what the registers hold

  template <typename Context>
  MP_DEVICE void StoreQuery(Context& c, const QueryTile& at, const Share& sum, float log) const {
    Tiles::StoreShare(c, out + a.out(at.b, at.h) + at.query * a.out_row(), sum, a.head_dim);
    if (Tiles::Part(c) == 0) c.Store(lse + c.block_y() * a.sequence + at.query, log);
  }

  // Keys [from, from + kScores) of the tile that begins with key `first`.
  template <typename Context, typename Array, typename Ids>
  MP_DEVICE void AddKeys(Context& c, const Array& tile, const Ids& ids, const QueryTile& at,
                         int64_t first, int from, const Share& q, Share& sum, float& max,
                         float& weight) const {
    float scores[kScores];
    float new_max = max;
    MP_UNROLL
    for (int k = 0; k < kScores; ++k) {
      const int64_t key = first + from + k;
      const float score = Tiles::Dot(c, q, Tiles::TileShare(c, tile, 0, from + k));
      const bool seen =
          key < a.sequence && ids.Get(from + k) == at.document && a.InReach(at.query, key);
      scores[k] = seen ? score : -INFINITY;
      new_max = fmaxf(new_max, scores[k]);
    }
    const float base = new_max == -INFINITY ? 0.0f : new_max;  // nothing seen so far
    const float shrink = expf(max - base);
    weight *= shrink;
    Tiles::Scale(sum, shrink);
    MP_UNROLL
    for (int k = 0; k < kScores; ++k) {
      const float p = expf(scores[k] - base);
      weight += p;
      Tiles::AddTo(sum, p, Tiles::TileShare(c, tile, kTile * Tiles::kPacks, from + k));
    }
    max = new_max;
  }
};

// delta[b, h, t] = d_out . out of one query; a warp has one.
template <typename T>
struct AttentionDeltaKernel {
  static constexpr int kThreads = 256;
  HeadLayout a;
  const T* out;
  const T* d_out;
  float* delta;

  Grid grid() const { return {.x = CeilDiv(a.batch * a.heads * a.sequence, kThreads / kWarp)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t index = c.block() * (kThreads / kWarp) + c.warp();
    if (index >= a.batch * a.heads * a.sequence) return;
    const int64_t t = index % a.sequence, bh = index / a.sequence;
    const int64_t at = a.out(bh / a.heads, bh % a.heads) + t * a.out_row();
    float sum = 0;
    for (int64_t i = c.lane() * 4; i < a.head_dim; i += kWarp * 4) {
      const auto x = Read<4>(c, out + at + i), y = Read<4>(c, d_out + at + i);
      MP_UNROLL
      for (int k = 0; k < 4; ++k) sum = fmaf(x.v[k], y.v[k], sum);
    }
    sum = WarpSum(c, sum);
    if (c.lane() == 0) c.Store(delta + index, sum);
  }
};

// What both halves of the backward read.
template <typename T>
struct AttentionBackwardArgs {
  HeadLayout a;
  const T* qkv;
  const T* d_out;
  const float* lse;
  const float* delta;
  float scale;
  T* dqkv;
};

// dq of a tile of queries.
template <typename T, int kD>
struct AttentionQueryGradientKernel {
  using Tiles = AttentionTiles<T, kD>;
  using Share = typename Tiles::Share;
  static constexpr int kThreads = Tiles::kThreads;
  AttentionBackwardArgs<T> args;

  Grid grid() const {
    return {CeilDiv(args.a.sequence, Tiles::kRows), args.a.batch * args.a.heads,
            Tiles::kSharedBytes};
  }

  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const HeadLayout& a = args.a;
    const auto tile = c.template DynamicShared<Four>();
    const auto ids = c.template Shared<int, kTile, 0>();
    const auto at = QueryTile::Of<Tiles::kRows, Tiles::kParts>(c, a);
    const int64_t g = at.h / (a.heads / a.kv_heads);
    const bool valid = at.query < a.sequence;
    const int64_t place = a.query(at.b, at.h) + at.query * a.row();
    if (!a.queries.Owns(at.first)) {
      if (valid) Tiles::StoreShare(c, args.dqkv + place, Share{}, a.head_dim);
      return;
    }
    const Share q = Tiles::LoadShare(c, args.qkv + place, valid, a.head_dim);
    const Share d_out = Tiles::LoadShare(c, args.d_out + a.out(at.b, at.h) + at.query * a.out_row(),
                                         valid, a.head_dim);
    const int64_t index = c.block_y() * a.sequence + at.query;
    const float lse = valid ? c.Load(args.lse + index) : 0.0f;
    const float delta = valid ? c.Load(args.delta + index) : 0.0f;
    Share dq = {};
    for (int64_t first = at.keys_begin; first < at.keys_end; first += kTile) {
      c.Sync();
      Tiles::LoadTile(c, args.qkv + a.key(at.b, g), a.row(), first, a.sequence, a.head_dim, tile,
                      0);
      Tiles::LoadTile(c, args.qkv + a.value(at.b, g), a.row(), first, a.sequence, a.head_dim, tile,
                      kTile * Tiles::kPacks);
      if (c.thread() < kTile) ids.Set(c.thread(), a.Document(c, at.b, first + c.thread()));
      c.Sync();
      for (int k = 0; k < kTile; ++k) {
        const Share key = Tiles::TileShare(c, tile, 0, k);
        const float score = Tiles::Dot(c, q, key) * args.scale;
        const float dp = Tiles::Dot(c, d_out, Tiles::TileShare(c, tile, kTile * Tiles::kPacks, k));
        const bool seen =
            first + k < a.sequence && ids.Get(k) == at.document && a.InReach(at.query, first + k);
        const float p = seen ? expf(score - lse) : 0.0f;
        Tiles::AddTo(dq, p * (dp - delta) * args.scale, key);
      }
    }
    if (valid) Tiles::StoreShare(c, args.dqkv + place, dq, a.head_dim);
  }
};

// dk and dv of a tile of keys: over all heads that read them, in order.
template <typename T, int kD>
struct AttentionKeyGradientKernel {
  using Tiles = AttentionTiles<T, kD>;
  using Share = typename Tiles::Share;
  static constexpr int kThreads = Tiles::kThreads;
  AttentionBackwardArgs<T> args;

  Grid grid() const {
    return {CeilDiv(args.a.sequence, Tiles::kRows), args.a.batch * args.a.kv_heads,
            Tiles::kSharedBytes};
  }

  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const HeadLayout& a = args.a;
    const int64_t b = c.block_y() / a.kv_heads, g = c.block_y() % a.kv_heads;
    const int64_t first_key = c.block() * Tiles::kRows;
    const int64_t key = first_key + c.thread() / Tiles::kParts;
    const bool valid = key < a.sequence;
    const int64_t k_place = a.key(b, g) + key * a.row(), v_place = a.value(b, g) + key * a.row();
    const Share k = Tiles::LoadShare(c, args.qkv + k_place, valid, a.head_dim);
    const Share v = Tiles::LoadShare(c, args.qkv + v_place, valid, a.head_dim);
    const int document = a.Document(c, b, key);
    Share dk = {}, dv = {};
    const int64_t group = a.heads / a.kv_heads;
    for (int64_t h = g * group; h < (g + 1) * group; ++h) {
      // Causal: no query before the tile's first key sees any of it.
      for (int64_t t = a.causal ? first_key / kTile * kTile : 0; t < a.sequence; t += kTile) {
        if (a.causal && t - first_key >= Tiles::kRows - 1 + a.window) break;  // none sees any of it
        if (!a.queries.Owns(t) || !Meets(c, b, t, first_key)) continue;
        AddQueries(c, b, h, t, static_cast<int>(key), document, k, v, dk, dv);
      }
    }
    if (!valid) return;
    Tiles::StoreShare(c, args.dqkv + k_place, dk, a.head_dim);
    Tiles::StoreShare(c, args.dqkv + v_place, dv, a.head_dim);
  }

 private:
  // Whether a tile of queries and the block's keys have a document in common; the same for all
  // threads.
  template <typename Context>
  MP_DEVICE bool Meets(Context& c, int64_t b, int64_t t, int64_t first_key) const {
    const HeadLayout& a = args.a;
    return a.Document(c, b, t + kTile - 1) >= a.Document(c, b, first_key) &&
           a.Document(c, b, t) <= a.Document(c, b, first_key + Tiles::kRows - 1);
  }

  // What a key behind the sequence's end gets is not stored.
  template <typename Context>
  MP_DEVICE void AddQueries(Context& c, int64_t b, int64_t h, int64_t t, int key, int document,
                            const Share& k, const Share& v, Share& dk, Share& dv) const {
    const HeadLayout& a = args.a;
    const auto tile = c.template DynamicShared<Four>();
    const auto ids = c.template Shared<int, kTile, 0>();
    const auto lse = c.template Shared<float, kTile, 1>();
    const auto delta = c.template Shared<float, kTile, 2>();
    c.Sync();
    Tiles::LoadTile(c, args.qkv + a.query(b, h), a.row(), t, a.sequence, a.head_dim, tile, 0);
    Tiles::LoadTile(c, args.d_out + a.out(b, h), a.out_row(), t, a.sequence, a.head_dim, tile,
                    kTile * Tiles::kPacks);
    if (c.thread() < kTile) {
      const int64_t query = t + c.thread();
      const int64_t index = (b * a.heads + h) * a.sequence + query;
      ids.Set(c.thread(), a.Document(c, b, query));
      lse.Set(c.thread(), query < a.sequence ? c.Load(args.lse + index) : 0.0f);
      delta.Set(c.thread(), query < a.sequence ? c.Load(args.delta + index) : 0.0f);
    }
    c.Sync();
    for (int i = 0; i < kTile; ++i) {
      const Share q = Tiles::TileShare(c, tile, 0, i);
      const Share d_out = Tiles::TileShare(c, tile, kTile * Tiles::kPacks, i);
      const float score = Tiles::Dot(c, k, q) * args.scale;
      const float dp = Tiles::Dot(c, v, d_out);
      const bool seen = t + i < a.sequence && ids.Get(i) == document && a.InReach(t + i, key);
      const float p = seen ? expf(score - lse.Get(i)) : 0.0f;
      Tiles::AddTo(dv, p, d_out);
      Tiles::AddTo(dk, p * (dp - delta.Get(i)) * args.scale, q);
    }
  }
};

inline float AttentionScale(const AttentionShape& shape) {
  return 1.0f / sqrtf(static_cast<float>(shape.head_dim));
}

// run(kernel) launches it.
template <typename T, typename Run>
absl::Status RunAttentionForward(const AttentionShape& shape, const T* qkv,
                                 const int32_t* documents, T* out, float* lse, const Run& run) {
  const HeadLayout a = LayoutOf(shape, documents);
  const float scale = AttentionScale(shape);
  if (a.head_dim <= 64) return run(AttentionForwardKernel<T, 64>{a, qkv, scale, out, lse});
  if (a.head_dim <= 128) return run(AttentionForwardKernel<T, 128>{a, qkv, scale, out, lse});
  return run(AttentionForwardKernel<T, 256>{a, qkv, scale, out, lse});
}

template <int kD, typename T, typename Run>
absl::Status RunAttentionGradients(const AttentionBackwardArgs<T>& args, const Run& run) {
  MP_RETURN_IF_ERROR(run(AttentionQueryGradientKernel<T, kD>{args}));
  return run(AttentionKeyGradientKernel<T, kD>{args});
}

template <typename T, typename Run>
absl::Status RunAttentionBackward(const AttentionShape& shape, const T* qkv,
                                  const int32_t* documents, const T* out, const float* lse,
                                  const T* d_out, T* dqkv, float* delta, const Run& run) {
  const HeadLayout a = LayoutOf(shape, documents);
  MP_RETURN_IF_ERROR(run(AttentionDeltaKernel<T>{a, out, d_out, delta}));
  const AttentionBackwardArgs<T> args = {a, qkv, d_out, lse, delta, AttentionScale(shape), dqkv};
  if (a.head_dim <= 64) return RunAttentionGradients<64>(args, run);
  if (a.head_dim <= 128) return RunAttentionGradients<128>(args, run);
  return RunAttentionGradients<256>(args, run);
}

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_CUDA_KERNEL_INL_H_
