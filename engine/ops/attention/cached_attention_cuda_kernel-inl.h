// The kernel behind cached_attention_cuda_kernel.h.
#ifndef MILEPOST_ENGINE_OPS_ATTENTION_CACHED_ATTENTION_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPS_ATTENTION_CACHED_ATTENTION_CUDA_KERNEL_INL_H_

#include <cstdint>

#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/attention/cached_attention_cuda_kernel.h"

namespace milepost::kernels::cuda {

// A warp takes every kWarps-th key, a lane kEach elements of the head; the warps' results are put
// together at the end. Keys and values of this call's own rows are read from qkv: other blocks may
// not have put them into the cache yet.
template <typename T>
struct CachedAttentionKernel {
  static constexpr int kThreads = 128;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kEach = 8;  // 256 / kWarp
  CachedAttentionArgs<T> a;
  float scale;

  Grid grid() const { return {.x = a.rows, .y = a.shape.heads}; }

  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t row = c.block(), head = c.block_y(), dim = a.shape.head_dim;
    T* out = a.out + (row * a.shape.heads + head) * dim;
    const int64_t of = a.apart ? row : 0;
    const int64_t text = a.texts == nullptr ? 0 : c.Load(a.texts + of);
    if (text < 0 || (!a.apart && row > c.Load(a.last))) {
      for (int64_t i = c.thread(); i < dim; i += kThreads) c.Store(out + i, Narrow<T>(0.0f));
      return;
    }
    const Place place{of, c.Load(a.positions + of), text};
    const int64_t group = a.shape.heads / a.shape.kv_heads;
    if (head % group == 0) Keep(c, row, head / group, place);
    Lane lane = Attend(c, row, head, place);
    Combine(c, lane, out);
  }

 private:
  // Of the call's rows of one text.
  struct Place {
    int64_t row;       // the first one
    int64_t position;  // its
    int64_t text;
    MP_DEVICE int64_t Position(int64_t of) const { return position + of - row; }
  };
  struct Lane {
    float max = -INFINITY;
    float weight = 0;
    float sum[kEach] = {};
  };

  MP_DEVICE int64_t Width() const {
    return (a.shape.heads + 2 * a.shape.kv_heads) * a.shape.head_dim;
  }
  // Of a head of keys in a row of qkv; values are `kv_heads` further.
  MP_DEVICE const T* RowKey(int64_t row, int64_t g) const {
    return a.qkv + row * Width() + (a.shape.heads + g) * a.shape.head_dim;
  }
  MP_DEVICE T* CacheKey(int64_t text, int64_t position, int64_t g) const {
    return a.cache + text * 2 * CacheValues() +
           (g * a.shape.positions + position) * a.shape.head_dim;
  }
  MP_DEVICE int64_t RowValues() const { return a.shape.kv_heads * a.shape.head_dim; }
  MP_DEVICE int64_t CacheValues() const { return RowValues() * a.shape.positions; }

  template <typename Context>
  MP_DEVICE void Keep(Context& c, int64_t row, int64_t g, const Place& place) const {
    const int64_t position = place.Position(row);
    if (position >= a.shape.positions) return;
    const T* from = RowKey(row, g);
    T* to = CacheKey(place.text, position, g);
    for (int64_t i = c.thread(); i < a.shape.head_dim; i += kThreads) {
      c.Store(to + i, c.Load(from + i));
      c.Store(to + CacheValues() + i, c.Load(from + RowValues() + i));
    }
  }

  template <typename Context>
  MP_DEVICE Lane Attend(Context& c, int64_t row, int64_t head, const Place& place) const {
    const int64_t dim = a.shape.head_dim;
    const int64_t g = head / (a.shape.heads / a.shape.kv_heads);
    const T* query = a.qkv + row * Width() + head * dim;
    float q[kEach];
    MP_UNROLL
    for (int i = 0; i < kEach; ++i) q[i] = Element(c, query, i) * scale;
    Lane lane;
    const T* rows = RowKey(place.row, g);
    const T* cached = CacheKey(place.text, 0, g);
    const int64_t after = place.Position(row) + 1, window = a.shape.window;
    const int64_t begin = window == 0 || after < window ? 0 : after - window;
    for (int64_t key = begin + c.warp(); key < after; key += kWarps) {
      const bool own = key >= place.position;
      const T* keys = own ? rows + (key - place.position) * Width() : cached + key * dim;
      const T* values = keys + (own ? RowValues() : CacheValues());
      float score = 0;
      MP_UNROLL
      for (int i = 0; i < kEach; ++i) score = fmaf(q[i], Element(c, keys, i), score);
      score = WarpSum(c, score);
      const float max = fmaxf(lane.max, score);
      const float shrink = expf(lane.max - max), p = expf(score - max);
      lane.max = max;
      lane.weight = lane.weight * shrink + p;
      MP_UNROLL
      for (int i = 0; i < kEach; ++i) {
        lane.sum[i] = fmaf(p, Element(c, values, i), lane.sum[i] * shrink);
      }
    }
    return lane;
  }

  template <typename Context>
  MP_DEVICE float Element(Context& c, const T* head, int i) const {
    const int64_t at = i * kWarp + c.lane();
    return at < a.shape.head_dim ? Widen(c.Load(head + at)) : 0.0f;
  }

  template <typename Context>
  MP_DEVICE void Combine(Context& c, const Lane& lane, T* out) const {
    const auto maxima = c.template Shared<float, kWarps, 0>();
    const auto weights = c.template Shared<float, kWarps, 1>();
    const auto sums = c.template Shared<float, kWarps * kWarp * kEach, 2>();
    if (c.lane() == 0) {
      maxima.Set(c.warp(), lane.max);
      weights.Set(c.warp(), lane.weight);
    }
    MP_UNROLL
    for (int i = 0; i < kEach; ++i) {
      sums.Set((c.warp() * kEach + i) * kWarp + c.lane(), lane.sum[i]);
    }
    c.Sync();
    float max = maxima.Get(0);  // warp 0 always has a key
    for (int w = 1; w < kWarps; ++w) max = fmaxf(max, maxima.Get(w));
    float weight = 0;
    for (int w = 0; w < kWarps; ++w) weight += weights.Get(w) * expf(maxima.Get(w) - max);
    for (int64_t i = c.thread(); i < a.shape.head_dim; i += kThreads) {
      float sum = 0;
      for (int w = 0; w < kWarps; ++w) {
        sum += sums.Get(static_cast<int>(w * kEach * kWarp + i)) * expf(maxima.Get(w) - max);
      }
      c.Store(out + i, Narrow<T>(sum / weight));
    }
  }
};

template <typename T>
CachedAttentionKernel<T> MakeCachedAttention(const CachedAttentionArgs<T>& args) {
  return {args, 1.0f / sqrtf(static_cast<float>(args.shape.head_dim))};
}

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_ATTENTION_CACHED_ATTENTION_CUDA_KERNEL_INL_H_
