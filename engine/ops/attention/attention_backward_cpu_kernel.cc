#include <algorithm>
#include <cmath>

#include "engine/kernels/cpu/parallel.h"
#include "engine/kernels/cpu/tile_product.h"
#include "engine/ops/attention/attention_cpu_kernel.h"
#include "engine/ops/attention/attention_layout_contract.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ops/attention/attention_backward_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/ops/attention/attention_tiles_cpu_kernel-inl.h"
#include "hwy/highway.h"

// With S = scale K Q^T (keys down, queries across), P = exp(S - lse), dP = V dO^T and
// delta = rowsum(dO * O): dS = P (dP - delta), dV = P dO, dK = scale dS Q, dQ^T = scale K^T dS.
HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

// Where the rows of one head of queries, and of the keys that it reads, start.
template <typename T>
struct Head {
  const T* query;
  const T* key;
  const T* value;
  const T* out;
  const float* lse;
  const T* d_out;
  T* d_query;
  T* d_key;
  T* d_value;
};

template <typename T>
HWY_INLINE float DotRow(const T* a, const T* b, int64_t n) {
  const DF d;
  VF sum = hn::Zero(d);
  ForVectors(n, [&](int64_t i, int64_t count) MP_SIMD {
    sum = hn::MulAdd(LoadUpTo(d, a + i, count), LoadUpTo(d, b + i, count), sum);
  });
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// w.rows -> words by columns and by row pairs.
template <typename T>
HWY_INLINE void PackQueryRows(const AttentionSizes& s, const T* rows, T* columns, T* pairs) {
  const int64_t steps = s.dim / kPair<T>;
  TransposeWords(reinterpret_cast<const uint32_t*>(rows), steps, kBlock, steps,
                 reinterpret_cast<uint32_t*>(columns), kBlock);
  PairRows(rows, kBlock, s.dim, s.padded_dim, pairs);
}

template <typename T, typename Stored>
void PackKeyBlock(const AttentionSizes& s, const BackwardArrays<T>& w, const Head<Stored>& head,
                  int64_t block, int64_t valid) {
  const int64_t at = block * kBlock;
  T* keys = w.keys + at * s.dim;
  CopyRows(head.key + at * s.row, s.row, valid, kBlock, s.dim, keys);
  if (w.key_pairs != w.keys) PairRows(keys, kBlock, s.dim, s.dim, w.key_pairs + at * s.dim);
  CopyRows(head.value + at * s.row, s.row, valid, kBlock, s.dim, w.values + at * s.dim);
}

template <typename T, typename Stored>
void PackQueryBlock(const AttentionSizes& s, const BackwardArrays<T>& w, const Head<Stored>& head,
                    int64_t block, int64_t valid) {
  const int64_t at = block * kBlock;
  CopyRows(head.query + at * s.row, s.row, valid, kBlock, s.dim, w.rows);
  PackQueryRows(s, w.rows, w.query_columns + at * s.dim, w.query_pairs + at * s.padded_dim);
  CopyRows(head.d_out + at * s.channels, s.channels, valid, kBlock, s.dim, w.rows);
  PackQueryRows(s, w.rows, w.d_out_columns + at * s.dim, w.d_out_pairs + at * s.padded_dim);
  for (int64_t i = 0; i < kBlock; ++i) {
    w.lse[at + i] = i < valid ? static_cast<float>(head.lse[at + i] * kLog2E) : 0.0f;
    const int64_t offset = (at + i) * s.channels;
    w.delta[at + i] = i < valid ? DotRow(head.out + offset, head.d_out + offset, s.dim) : 0.0f;
  }
}

struct Gradients {
  VF p;
  VF ds;
};
HWY_INLINE Gradients ScoreGradients(DF d, const float* s, const float* dp, VF factor, VF lse,
                                    VF delta) {
  const VF p = FastExp2(d, hn::MulSub(hn::LoadU(d, s), factor, lse));
  return {p, hn::Mul(p, hn::Sub(hn::LoadU(d, dp), delta))};
}

// Scores and their gradients -> P and dS, in every form the products need. `lse` and `delta` are
// those of the query block.
HWY_INLINE void Differentiate(const AttentionSizes& s, const BackwardArrays<float>& w,
                              const float* lse, const float* delta) {
  const DF d;
  const VF factor = hn::Set(d, static_cast<float>(s.scale * kLog2E));
  for (int64_t q = 0; q < kBlock; q += hn::Lanes(d)) {
    const VF vlse = hn::LoadU(d, lse + q), vdelta = hn::LoadU(d, delta + q);
    for (int64_t at = q; at < kBlock * kBlock; at += kBlock) {
      const Gradients g = ScoreGradients(d, w.scores + at, w.d_scores + at, factor, vlse, vdelta);
      hn::StoreU(g.p, d, w.weights + at);
      hn::StoreU(g.ds, d, w.d_weights + at);
    }
  }
}
HWY_INLINE void StoreHalves(VU32 pairs, bf16* even, bf16* odd) {
  const DU32 du;
  const DU16 d16;
  const auto low = hn::BitCast(DI32(), hn::And(pairs, hn::Set(du, 0xffffu)));
  const auto high = hn::BitCast(DI32(), hn::ShiftRight<16>(pairs));
  hn::StoreU(hn::DemoteTo(d16, low), d16, reinterpret_cast<uint16_t*>(even));
  hn::StoreU(hn::DemoteTo(d16, high), d16, reinterpret_cast<uint16_t*>(odd));
}
HWY_INLINE void Differentiate(const AttentionSizes& s, const BackwardArrays<bf16>& w,
                              const float* lse, const float* delta) {
  const DF d;
  const VF factor = hn::Set(d, static_cast<float>(s.scale * kLog2E));
  uint32_t* pair_words = reinterpret_cast<uint32_t*>(w.d_weight_pairs);
  for (int64_t q = 0; q < kBlock; q += hn::Lanes(d)) {
    const VF vlse = hn::LoadU(d, lse + q), vdelta = hn::LoadU(d, delta + q);
    for (int64_t key = 0; key < kBlock; key += 2) {
      const int64_t at = key * kBlock + q;
      const int64_t next = at + kBlock;
      const Gradients g0 = ScoreGradients(d, w.scores + at, w.d_scores + at, factor, vlse, vdelta);
      const Gradients g1 =
          ScoreGradients(d, w.scores + next, w.d_scores + next, factor, vlse, vdelta);
      StoreHalves(PairWords(g0.p, g1.p), w.weights + at, w.weights + next);
      const VU32 ds = PairWords(g0.ds, g1.ds);
      StoreHalves(ds, w.d_weights + at, w.d_weights + next);
      hn::StoreU(ds, DU32(), pair_words + key / 2 * kBlock + q);
    }
  }
}

// What key block `key_block` and query block `query_block` give each other. `accumulate`: d_key and
// d_value, those of the key block, hold something already.
template <typename T>
void BlockPair(const AttentionSizes& s, TileProduct product, const BackwardArrays<T>& w,
               const KeyBounds& keys, int64_t key_block, int64_t query_block, bool accumulate,
               float* d_key, float* d_value) {
  constexpr int64_t kPairSteps = kBlock / kPair<T>;
  const int64_t steps = s.dim / kPair<T>;
  const int64_t k = key_block * kBlock;
  const int64_t q = query_block * kBlock;
  product({w.keys + k * s.dim, steps, 1, w.query_columns + q * s.dim, kBlock, w.scores, kBlock},
          kBlock, kBlock, steps, false);
  product({w.values + k * s.dim, steps, 1, w.d_out_columns + q * s.dim, kBlock, w.d_scores, kBlock},
          kBlock, kBlock, steps, false);
  if (!keys.Whole(query_block, key_block)) MaskKeys(QueryBounds(keys, query_block), k, w.scores);
  Differentiate(s, w, w.lse + q, w.delta + q);
  product({w.weights, kPairSteps, 1, w.d_out_pairs + q * s.padded_dim, s.padded_dim, d_value,
           s.padded_dim},
          kBlock, s.padded_dim, kPairSteps, accumulate);
  product({w.d_weights, kPairSteps, 1, w.query_pairs + q * s.padded_dim, s.padded_dim, d_key,
           s.padded_dim},
          kBlock, s.padded_dim, kPairSteps, accumulate);
  product(
      {w.key_pairs + k * s.dim, 1, s.dim, w.d_weight_pairs, kBlock, w.d_query + q * s.dim, kBlock},
      s.dim, kBlock, kPairSteps, key_block > keys.KeyBlocks(query_block).begin);
}

template <typename T>
HWY_INLINE void WriteRows(const float* from, int64_t from_row, float factor, int64_t valid,
                          int64_t width, T* to, int64_t to_row) {
  const DF d;
  for (int64_t row = 0; row < valid; ++row) {
    ForVectors(width, [&](int64_t i, int64_t n) MP_SIMD {
      const VF value = hn::Mul(LoadUpTo(d, from + row * from_row + i, n), hn::Set(d, factor));
      StoreUpTo(value, d, to + row * to_row + i, n);
    });
  }
}

// What the queries of a part give a block of keys. `accumulate`: as in BlockPair.
template <typename T>
void KeyBlock(const AttentionSizes& s, TileProduct product, const BackwardArrays<T>& w,
              const KeyBounds& keys, const QueryPart& part, int64_t key, bool accumulate,
              float* d_key, float* d_value) {
  const BlockRange queries = keys.QueryBlocks(key);
  for (int64_t query = queries.begin; query < queries.end; ++query) {
    if (!part.Owns(query * kBlock)) continue;
    BlockPair(s, product, w, keys, key, query, accumulate, d_key, d_value);
    accumulate = true;
  }
  if (accumulate) return;
  std::fill_n(d_key, kBlock * s.padded_dim, 0.0f);
  std::fill_n(d_value, kBlock * s.padded_dim, 0.0f);
}

// One head of queries; number `member` of those that share their keys.
template <typename T, typename Stored>
void BackwardQueries(const AttentionSizes& s, TileProduct product, const BackwardArrays<T>& w,
                     const KeyBounds& keys, const QueryPart& part, int64_t member,
                     const Head<Stored>& head) {
  const auto valid = [&](int64_t block) {
    return std::min(kBlock, keys.sequence() - block * kBlock);
  };
  for (int64_t block = 0; block < s.blocks; ++block) {
    if (member == 0) PackKeyBlock(s, w, head, block, valid(block));
    if (part.Owns(block * kBlock)) PackQueryBlock(s, w, head, block, valid(block));
  }
  for (int64_t key = 0; key < s.blocks; ++key) {
    const int64_t kept = s.group == 1 ? 0 : key * kBlock * s.padded_dim;
    float* d_key = w.d_key + kept;
    float* d_value = w.d_value + kept;
    KeyBlock(s, product, w, keys, part, key, /*accumulate=*/member > 0, d_key, d_value);
    if (member != s.group - 1) continue;
    const int64_t to = key * kBlock * s.row;
    WriteRows(d_key, s.padded_dim, s.scale, valid(key), s.dim, head.d_key + to, s.row);
    WriteRows(d_value, s.padded_dim, 1.0f, valid(key), s.dim, head.d_value + to, s.row);
  }
  for (int64_t block = 0; block < s.blocks; ++block) {
    Stored* d_query = head.d_query + block * kBlock * s.row;
    if (!part.Owns(block * kBlock)) {
      for (int64_t row = 0; row < valid(block); ++row) {
        std::fill_n(d_query + row * s.row, s.dim, Stored{});
      }
      continue;
    }
    TransposeWords(reinterpret_cast<const uint32_t*>(w.d_query + block * kBlock * s.dim), kBlock,
                   s.dim, kBlock, reinterpret_cast<uint32_t*>(w.d_query_rows), s.dim);
    WriteRows(w.d_query_rows, s.dim, s.scale, valid(block), s.dim, d_query, s.row);
  }
}

template <typename Stored>
void BackwardHead(const AttentionShape& shape, int64_t batch, int64_t kv_head, const Stored* qkv,
                  const int32_t* documents, const Stored* out, const float* lse,
                  const Stored* d_out, Stored* dqkv, void* workspace) {
  using T = PackedAs<Stored>;
  const AttentionSizes s(shape);
  const KeyBounds keys(shape, batch, documents);
  const TileProduct product = ChooseTileProduct(kDTypeOf<T>);
  const BackwardArrays<T> w(s, Carver(workspace));
  const Stored* packed = qkv + batch * shape.sequence * s.row;
  Stored* d_packed = dqkv + batch * shape.sequence * s.row;
  for (int64_t member = 0; member < s.group; ++member) {
    const int64_t which = kv_head * s.group + member;
    const int64_t at = batch * shape.sequence * s.channels + which * s.dim;
    const Head<Stored> head = {packed + which * s.dim,
                               packed + s.Key(kv_head),
                               packed + s.Value(kv_head),
                               out + at,
                               lse + (batch * shape.heads + which) * shape.sequence,
                               d_out + at,
                               d_packed + which * s.dim,
                               d_packed + s.Key(kv_head),
                               d_packed + s.Value(kv_head)};
    BackwardQueries(s, product, w, keys, shape.queries, member, head);
  }
}

}  // namespace

void BackwardHeadF32(const AttentionShape& shape, int64_t batch, int64_t head, const float* qkv,
                     const int32_t* documents, const float* out, const float* lse,
                     const float* d_out, float* dqkv, void* workspace) {
  BackwardHead(shape, batch, head, qkv, documents, out, lse, d_out, dqkv, workspace);
}
void BackwardHeadBf16(const AttentionShape& shape, int64_t batch, int64_t head, const bf16* qkv,
                      const int32_t* documents, const bf16* out, const float* lse,
                      const bf16* d_out, bf16* dqkv, void* workspace) {
  BackwardHead(shape, batch, head, qkv, documents, out, lse, d_out, dqkv, workspace);
}
void BackwardHeadF16(const AttentionShape& shape, int64_t batch, int64_t head, const f16* qkv,
                     const int32_t* documents, const f16* out, const float* lse, const f16* d_out,
                     f16* dqkv, void* workspace) {
  BackwardHead(shape, batch, head, qkv, documents, out, lse, d_out, dqkv, workspace);
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(BackwardHeadF32);
HWY_EXPORT(BackwardHeadBf16);
HWY_EXPORT(BackwardHeadF16);

namespace {

template <typename T, typename Head>
void BackwardWith(Head run, const AttentionShape& shape, const T* qkv, const int32_t* documents,
                  const T* out, const float* lse, const T* d_out, T* dqkv, void* workspace) {
  const int64_t bytes = AttentionBackwardWorkspaceBytes(shape, kDTypeOf<T>, 1);
  const int64_t heads = AttentionSizes(shape).kv_heads;
  ParallelTasks(shape.batch * heads, [&](int64_t task, int thread) {
    run(shape, task / heads, task % heads, qkv, documents, out, lse, d_out, dqkv,
        static_cast<char*>(workspace) + thread * bytes);
  });
}

}  // namespace

template <>
void AttentionBackward(const AttentionShape& shape, const float* qkv, const int32_t* documents,
                       const float* out, const float* lse, const float* d_out, float* dqkv,
                       void* workspace) {
  BackwardWith(HWY_DYNAMIC_DISPATCH(BackwardHeadF32), shape, qkv, documents, out, lse, d_out, dqkv,
               workspace);
}
template <>
void AttentionBackward(const AttentionShape& shape, const bf16* qkv, const int32_t* documents,
                       const bf16* out, const float* lse, const bf16* d_out, bf16* dqkv,
                       void* workspace) {
  BackwardWith(HWY_DYNAMIC_DISPATCH(BackwardHeadBf16), shape, qkv, documents, out, lse, d_out, dqkv,
               workspace);
}
template <>
void AttentionBackward(const AttentionShape& shape, const f16* qkv, const int32_t* documents,
                       const f16* out, const float* lse, const f16* d_out, f16* dqkv,
                       void* workspace) {
  BackwardWith(HWY_DYNAMIC_DISPATCH(BackwardHeadF16), shape, qkv, documents, out, lse, d_out, dqkv,
               workspace);
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
