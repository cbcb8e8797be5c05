#include <algorithm>
#include <cmath>

#include "engine/kernels/cpu/parallel.h"
#include "engine/kernels/cpu/tile_product.h"
#include "engine/ops/attention/attention_cpu_kernel.h"
#include "engine/ops/attention/attention_layout_contract.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ops/attention/attention_forward_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/ops/attention/attention_softmax_cpu_kernel-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

// One block of queries against every block of keys of which it sees something.
template <typename T, typename Stored>
void QueryBlock(const AttentionSizes& s, TileProduct product, const ForwardArrays<T>& w,
                const KeyBounds& keys, int64_t block, int64_t valid, const Stored* query,
                Stored* out, float* lse) {
  const int64_t steps = s.dim / kPair<T>;
  CopyRows(query, s.row, valid, kBlock, s.dim, w.rows);
  TransposeWords(reinterpret_cast<const uint32_t*>(w.rows), steps, kBlock, steps,
                 reinterpret_cast<uint32_t*>(w.query), kBlock);
  Running running;
  const QueryBounds bounds(keys, block);
  const BlockRange seen = keys.KeyBlocks(block);
  const int64_t begin = seen.begin * kBlock;
  const int64_t end = seen.end * kBlock;
  for (int64_t key = begin; key < end; key += kKeyTile) {
    const int64_t count = std::min(kKeyTile, end - key);
    const TileOperands scores = {w.keys + key * s.dim, steps, 1, w.query, kBlock, w.scores, kBlock};
    product(scores, count, kBlock, steps, false);
    for (int64_t i = 0; i < count; i += kBlock) {
      if (keys.Whole(block, (key + i) / kBlock)) continue;
      MaskKeys(bounds, key + i, w.scores + i * kBlock);
    }
    SoftmaxStep(w.scores, count, s.scale, s.dim, key == begin, w.weights, w.out, &running);
    const TileOperands weighted = {
        w.values + key * s.dim, 1, s.dim, w.weights, kBlock, w.out, kBlock};
    product(weighted, s.dim, kBlock, count / kPair<T>, key != begin);
  }
  WriteBlock(s, w, running, valid, out, lse);
}

// What a part makes of queries that others compute.
template <typename Stored>
void ZeroBlock(const AttentionSizes& s, int64_t valid, Stored* out, float* lse) {
  for (int64_t row = 0; row < valid; ++row) std::fill_n(out + row * s.channels, s.dim, Stored{});
  std::fill_n(lse, valid, 0.0f);
}

// The query blocks of rounds (QueryPart) `first`, first + stride, ... of one head.
template <typename Stored>
void ForwardHead(const AttentionShape& shape, int64_t batch, int64_t head, int64_t first,
                 int64_t stride, const Stored* qkv, const int32_t* documents, Stored* out,
                 float* lse, void* workspace) {
  using T = PackedAs<Stored>;
  const AttentionSizes s(shape);
  const KeyBounds bounds(shape, batch, documents);
  const TileProduct product = ChooseTileProduct(kDTypeOf<T>);
  const ForwardArrays<T> w(s, Carver(workspace));
  const Stored* sequence = qkv + batch * shape.sequence * s.row;
  const Stored* query = sequence + head * s.dim;
  const Stored* keys = sequence + s.Key(head / s.group);
  const Stored* values = sequence + s.Value(head / s.group);
  Stored* head_out = out + batch * shape.sequence * s.channels + head * s.dim;
  float* head_lse = lse + (batch * shape.heads + head) * shape.sequence;
  int64_t packed = 0;  // blocks of keys before it are, or no later query sees them
  for (int64_t block = 0; block < s.blocks; ++block) {
    const int64_t at = block * kBlock;
    if (shape.queries.RoundOf(at) % stride != first) continue;
    const int64_t valid = std::min(kBlock, shape.sequence - at);
    if (!shape.queries.Owns(at)) {
      ZeroBlock(s, valid, head_out + at * s.channels, head_lse + at);
      continue;
    }
    const BlockRange seen = bounds.KeyBlocks(block);
    for (packed = std::max(packed, seen.begin); packed < seen.end; ++packed) {
      const int64_t key = packed * kBlock;
      const int64_t rows = std::min(kBlock, shape.sequence - key);
      CopyRows(keys + key * s.row, s.row, rows, kBlock, s.dim, w.keys + key * s.dim);
      CopyRows(values + key * s.row, s.row, rows, kBlock, s.dim, w.rows);
      PairRows(w.rows, kBlock, s.dim, s.dim, w.values + key * s.dim);
    }
    QueryBlock(s, product, w, bounds, block, valid, query + at * s.row, head_out + at * s.channels,
               head_lse + at);
  }
}

}  // namespace

void ForwardHeadF32(const AttentionShape& shape, int64_t batch, int64_t head, int64_t first,
                    int64_t stride, const float* qkv, const int32_t* documents, float* out,
                    float* lse, void* workspace) {
  ForwardHead(shape, batch, head, first, stride, qkv, documents, out, lse, workspace);
}
void ForwardHeadBf16(const AttentionShape& shape, int64_t batch, int64_t head, int64_t first,
                     int64_t stride, const bf16* qkv, const int32_t* documents, bf16* out,
                     float* lse, void* workspace) {
  ForwardHead(shape, batch, head, first, stride, qkv, documents, out, lse, workspace);
}
void ForwardHeadF16(const AttentionShape& shape, int64_t batch, int64_t head, int64_t first,
                    int64_t stride, const f16* qkv, const int32_t* documents, f16* out, float* lse,
                    void* workspace) {
  ForwardHead(shape, batch, head, first, stride, qkv, documents, out, lse, workspace);
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(ForwardHeadF32);
HWY_EXPORT(ForwardHeadBf16);
HWY_EXPORT(ForwardHeadF16);

namespace {

template <typename T, typename Head>
void ForwardWith(Head run, const AttentionShape& shape, const T* qkv, const int32_t* documents,
                 T* out, float* lse, void* workspace) {
  // A head is split, its rounds of query blocks dealt out in turn, only where there are few heads
  // per thread: every task packs the keys again.
  const int64_t all = shape.batch * shape.heads;
  const int64_t wanted = (4 * MaxThreads() + all - 1) / all;
  const int64_t rounds = shape.queries.RoundOf(shape.sequence - 1) + 1;
  const int64_t parts = std::clamp<int64_t>(wanted, 1, rounds);
  const int64_t bytes = AttentionForwardWorkspaceBytes(shape, kDTypeOf<T>, 1);
  ParallelTasks(all * parts, [&](int64_t task, int thread) {
    const int64_t which = task / parts;
    run(shape, which / shape.heads, which % shape.heads, task % parts, parts, qkv, documents, out,
        lse, static_cast<char*>(workspace) + thread * bytes);
  });
}

}  // namespace

template <>
void AttentionForward(const AttentionShape& shape, const float* qkv, const int32_t* documents,
                      float* out, float* lse, void* workspace) {
  ForwardWith(HWY_DYNAMIC_DISPATCH(ForwardHeadF32), shape, qkv, documents, out, lse, workspace);
}
template <>
void AttentionForward(const AttentionShape& shape, const bf16* qkv, const int32_t* documents,
                      bf16* out, float* lse, void* workspace) {
  ForwardWith(HWY_DYNAMIC_DISPATCH(ForwardHeadBf16), shape, qkv, documents, out, lse, workspace);
}
template <>
void AttentionForward(const AttentionShape& shape, const f16* qkv, const int32_t* documents,
                      f16* out, float* lse, void* workspace) {
  ForwardWith(HWY_DYNAMIC_DISPATCH(ForwardHeadF16), shape, qkv, documents, out, lse, workspace);
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
