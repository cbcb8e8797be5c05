// The kernels behind norm_cuda_kernel.h, for widths that are multiples of 64. A thread has 32
// elements of a row in registers: 8 at each of four places 16 apart within a group of 64, those
// whose dropout mask eight Philox calls give. kPerRow threads share a row.
#ifndef MILEPOST_ENGINE_OPS_NORM_NORM_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPS_NORM_NORM_CUDA_KERNEL_INL_H_

#include <cstdint>

#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/random.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/norm/norm_cuda_kernel.h"

namespace milepost::kernels::cuda {

inline constexpr int kItemElements = 32;
inline constexpr int64_t kMaxItemWidth = 512 * kItemElements;

// Elements from a row to the next.
template <typename Args>
MP_DEVICE int64_t RowStride(const Args& a) {
  return a.stride == 0 ? a.width : a.stride;
}

// A thread's share of a row.
struct Item {
  float v[4][8];
};
MP_DEVICE int64_t ItemBegin(int item) { return item / 2 * 64 + item % 2 * 8; }

template <typename Context, typename T>
MP_DEVICE Item LoadItem(Context& c, const T* p) {
  Item item;
  MP_UNROLL
  for (int j = 0; j < 4; ++j) {
    const auto eight = Read<8>(c, p + 16 * j);
    MP_UNROLL
    for (int k = 0; k < 8; ++k) item.v[j][k] = eight.v[k];
  }
  return item;
}
template <typename Context, typename T>
MP_DEVICE void StoreItem(Context& c, T* p, const Item& item) {
  MP_UNROLL
  for (int j = 0; j < 4; ++j) Write(c, p + 16 * j, item.v[j]);
}
// What a reader of the stored item would see.
template <typename T>
MP_DEVICE void RoundItem(Item& item) {
  MP_UNROLL
  for (int i = 0; i < kItemElements; ++i) {
    item.v[i / 8][i % 8] = Widen(Narrow<T>(item.v[i / 8][i % 8]));
  }
}

// item *= the multipliers of the elements from `element` of the tensor on.
template <typename Context>
MP_DEVICE void DropItem(Context& c, const DropoutMask& mask, int64_t element, Item& item) {
  if (mask.position == nullptr) return;
  const uint64_t first =
      mask.ElementOf(c.Load(&mask.position->first_sample), static_cast<uint64_t>(element));
  const MaskItem keep = MaskOfItem(mask, first, c.Load(&mask.position->step));
  MP_UNROLL
  for (int i = 0; i < kItemElements; ++i) item.v[i / 8][i % 8] *= keep.keep[i / 8][i % 8];
}

template <int kPerRow>
inline constexpr int kNormThreads = kPerRow < 128 ? 128 : kPerRow;

template <typename T, bool kLayer, int kPerRow>
struct NormForwardKernel {
  static constexpr int kThreads = kNormThreads<kPerRow>;
  static constexpr int kRows = kThreads / kPerRow;  // of a block
  NormForwardArgs<T> a;
  DropoutMask mask;

  Grid grid() const { return {.x = CeilDiv(a.rows, kRows)}; }

  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t row = c.block() * kRows + c.thread() / kPerRow;
    if (row >= a.rows) return;  // a whole warp
    const int item = c.thread() % kPerRow;
    const bool active = item * kItemElements < a.width;
    const int64_t column = ItemBegin(item);
    const int64_t at = row * RowStride(a) + column;
    Item v = {};
    if (active) v = Input(c, at);
    float mean = 0;
    if constexpr (kLayer) {
      float sum = 0;
      MP_UNROLL
      for (int i = 0; i < kItemElements; ++i) sum += v.v[i / 8][i % 8];
      mean = RowSum<0>(c, sum) / static_cast<float>(a.width);
    }
    float squares = 0;
    if (active) {
      MP_UNROLL
      for (int i = 0; i < kItemElements; ++i) {
        const float centred = v.v[i / 8][i % 8] - mean;
        squares = fmaf(centred, centred, squares);
      }
    }
    const float variance = RowSum<1>(c, squares) / static_cast<float>(a.width);
    const float rstd = 1.0f / sqrtf(variance + a.epsilon);
    if (active) Output(c, column, at, mean, rstd, v);
    if (item != 0) return;
    if constexpr (kLayer) c.Store(a.mean + row, mean);
    c.Store(a.rstd + row, rstd);
  }

 private:
  template <int kTag, typename Context>
  MP_DEVICE static float RowSum(Context& c, float value) {
    if constexpr (kPerRow == kWarp) {
      return WarpSum(c, value);
    } else {
      return BlockSum<kThreads, kTag>(c, value);
    }
  }

  template <typename Context>
  MP_DEVICE Item Input(Context& c, int64_t at) const {
    Item v = LoadItem(c, a.x + at);
    if (a.residual == nullptr) return v;
    if constexpr (kLayer) DropItem(c, mask, at, v);
    const Item residual = LoadItem(c, a.residual + at);
    MP_UNROLL
    for (int i = 0; i < kItemElements; ++i) v.v[i / 8][i % 8] += residual.v[i / 8][i % 8];
    StoreItem(c, a.sum + at, v);
    RoundItem<T>(v);
    return v;
  }

  template <typename Context>
  MP_DEVICE void Output(Context& c, int64_t column, int64_t at, float mean, float rstd,
                        Item& v) const {
    MP_UNROLL
    for (int j = 0; j < 4; ++j) {
      const auto gamma = Read<8>(c, a.gamma + column + 16 * j);
      Floats<8> beta = {};
      if constexpr (kLayer) beta = Read<8>(c, a.beta + column + 16 * j);
      MP_UNROLL
      for (int k = 0; k < 8; ++k) {
        const float normal = (v.v[j][k] - mean) * rstd;
        v.v[j][k] =
            kLayer ? fmaf(normal, gamma.v[k], beta.v[k]) : normal * (gamma.v[k] + a.gamma_offset);
      }
    }
    StoreItem(c, a.y + at, v);
  }
};

// With xhat = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - xhat mean(g xhat)), the
// first mean of LayerNorm alone; dgamma += dy xhat; dbeta += dy. The last two into partials of the
// block, [blocks, width]; the block's shared memory holds them meanwhile, each thread its own.
template <typename T, bool kLayer, int kPerRow>
struct NormBackwardKernel {
  static constexpr int kThreads = kNormThreads<kPerRow>;
  static constexpr int kRows = kThreads / kPerRow;
  static constexpr int kSums = kLayer ? 2 : 1;
  // What flows past the norm is read with the rest, where registers are left for it: a second wait
  // for the memory would cost a fifth of the time.
  static constexpr bool kReadsAhead = sizeof(T) == 2;
  static constexpr int kPacks = kItemElements / kPack<T>;
  NormBackwardArgs<T> a;
  DropoutMask mask;
  float* partial_gamma;
  float* partial_beta;

  Grid grid() const {
    const int64_t blocks = CeilDiv(a.rows, kRows);
    return {.x = blocks < kMaxNormBlocks ? blocks : kMaxNormBlocks,
            .shared_bytes = int64_t{kThreads} * kItemElements * kSums * 4};
  }

  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    auto sums = c.template DynamicShared<float>();
    for (int i = 0; i < kItemElements * kSums; ++i) sums.Set(i * kThreads + c.thread(), 0.0f);
    const int item = c.thread() % kPerRow;
    const bool active = item * kItemElements < a.width;
    int parity = 0;
    // All threads take part, so that they meet in the sums.
    for (int64_t first = c.block() * kRows; first < a.rows; first += c.blocks() * kRows) {
      const int64_t row = first + c.thread() / kPerRow;
      Row(c, sums, row, ItemBegin(item), active && row < a.rows, parity);
      parity ^= 1;
    }
    if constexpr (kRows > 1) c.Sync();
    if (c.thread() < kPerRow && active) Partials(c, sums, ItemBegin(item));
  }

 private:
  struct Means {
    float g, gx;
  };
  struct Upstream {
    Pack<T, kPack<T>> v[kPacks];
  };

  template <typename Context, typename Array>
  MP_DEVICE void Row(Context& c, Array& sums, int64_t row, int64_t column, bool active,
                     int parity) const {
    const int64_t at = row * RowStride(a) + column;
    Item xhat = {}, g = {};
    Upstream upstream = {};
    float sum_g = 0, sum_gx = 0, rstd = 0, mean = 0;
    if (active) {
      rstd = c.Load(a.rstd + row);
      if constexpr (kLayer) mean = c.Load(a.mean + row);
      if constexpr (kReadsAhead) upstream = ReadUpstream(c, at);
      xhat = LoadItem(c, a.x + at);
      g = LoadItem(c, a.dy + at);
      MP_UNROLL
      for (int j = 0; j < 4; ++j) {
        const auto gamma = Read<8>(c, a.gamma + column + 16 * j);
        MP_UNROLL
        for (int k = 0; k < 8; ++k) {
          const float x = (xhat.v[j][k] - mean) * rstd;
          const float dy = g.v[j][k];
          const int slot = (j * 8 + k) * kThreads + c.thread();
          sums.Set(slot, fmaf(dy, x, sums.Get(slot)));
          if constexpr (kLayer) {
            const int other = slot + kItemElements * kThreads;
            sums.Set(other, sums.Get(other) + dy);
          }
          xhat.v[j][k] = x;
          g.v[j][k] = dy * (kLayer ? gamma.v[k] : gamma.v[k] + a.gamma_offset);
          sum_g += g.v[j][k];
          sum_gx = fmaf(g.v[j][k], x, sum_gx);
        }
      }
    }
    const Means means = RowMeans(c, sum_g, sum_gx, parity);
    if (!active) return;
    if constexpr (!kReadsAhead) upstream = ReadUpstream(c, at);
    Output(c, at, rstd, means, upstream, xhat, g);
  }

  template <typename Context>
  MP_DEVICE Upstream ReadUpstream(Context& c, int64_t at) const {
    Upstream upstream = {};
    if (a.dx_upstream == nullptr) return upstream;
    constexpr int kOfEight = 8 / kPack<T>;
    MP_UNROLL
    for (int i = 0; i < kPacks; ++i) {
      const T* from = a.dx_upstream + at + i / kOfEight * 16 + i % kOfEight * kPack<T>;
      upstream.v[i] = c.Load(reinterpret_cast<const Pack<T, kPack<T>>*>(from));
    }
    return upstream;
  }

  // Two sums with one barrier: the next row's go into the other half.
  template <typename Context>
  MP_DEVICE Means RowMeans(Context& c, float g, float gx, int parity) const {
    if constexpr (kLayer) g = WarpSum(c, g);
    gx = WarpSum(c, gx);
    if constexpr (kPerRow > kWarp) {
      constexpr int kWarps = kThreads / kWarp, kOfRow = kPerRow / kWarp;
      auto parts = c.template Shared<float, 4 * kWarps, 0>();
      const int half = parity * 2 * kWarps;
      if (c.lane() == 0) {
        parts.Set(half + c.warp(), g);
        parts.Set(half + kWarps + c.warp(), gx);
      }
      c.Sync();
      g = gx = 0;
      const int first = c.warp() / kOfRow * kOfRow;
      for (int w = first; w < first + kOfRow; ++w) {
        if constexpr (kLayer) g += parts.Get(half + w);
        gx += parts.Get(half + kWarps + w);
      }
    }
    const float scale = 1.0f / static_cast<float>(a.width);
    return {kLayer ? g * scale : 0.0f, gx * scale};
  }

  template <typename Context>
  MP_DEVICE void Output(Context& c, int64_t at, float rstd, const Means& means,
                        const Upstream& upstream, const Item& xhat, Item& g) const {
    MP_UNROLL
    for (int i = 0; i < kItemElements; ++i) {
      float& into = g.v[i / 8][i % 8];
      into = rstd * fmaf(-xhat.v[i / 8][i % 8], means.gx, into - means.g) +
             Widen(upstream.v[i / kPack<T>].v[i % kPack<T>]);
    }
    StoreItem(c, a.dx + at, g);
    if (a.d_delta == nullptr) return;
    RoundItem<T>(g);
    if constexpr (kLayer) DropItem(c, mask, at, g);
    StoreItem(c, a.d_delta + at, g);
  }

  template <typename Context, typename Array>
  MP_DEVICE void Partials(Context& c, Array& sums, int64_t column) const {
    const int64_t at = c.block() * a.width + column;
    for (int sum = 0; sum < kSums; ++sum) {
      float* out = (sum == 0 ? partial_gamma : partial_beta) + at;
      for (int i = 0; i < kItemElements; i += 4) {
        float four[4];
        MP_UNROLL
        for (int k = 0; k < 4; ++k) {
          const int slot = (sum * kItemElements + i + k) * kThreads + c.thread();
          four[k] = sums.Get(slot);
          for (int row = 1; row < kRows; ++row) four[k] += sums.Get(slot + row * kPerRow);
        }
        Write(c, out + i / 8 * 16 + i % 8, four);
      }
    }
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_NORM_NORM_CUDA_KERNEL_INL_H_
