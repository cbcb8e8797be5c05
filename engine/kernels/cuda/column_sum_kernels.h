// The second half of sums over rows: partial sums, one per block of an earlier kernel, are added in
// block order.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_COLUMN_SUM_KERNELS_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_COLUMN_SUM_KERNELS_H_

#include <cstdint>

#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/stream.h"

namespace milepost::kernels::cuda {

// One of them; none where out is null.
struct ColumnSum {
  const float* partials = nullptr;
  bool accumulate = false;
  float* out = nullptr;
};

// out[i] (+)= sum over p of partials[p, i], of one or two of the same shape. A block has 32 columns
// of one, each warp every 32nd partial: there are few blocks, and what a warp waits for is the
// memory's latency.
struct ColumnSumKernel {
  static constexpr int kThreads = 1024;
  static constexpr int kAtOnce = 8;
  ColumnSum first, second;
  int64_t count, width;

  Grid grid() const { return {.x = CeilDiv(width, kWarp), .y = second.out == nullptr ? 1 : 2}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    constexpr int kWarps = kThreads / kWarp;
    const bool one = c.block_y() == 0;
    const float* partials = one ? first.partials : second.partials;
    const int64_t column = c.block() * kWarp + c.lane();
    float sum = 0;
    if (column < width) {
      int64_t p = c.warp();
      // Loads at once, sums in order.
      for (; p + (kAtOnce - 1) * kWarps < count; p += kAtOnce * kWarps) {
        float values[kAtOnce];
        MP_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          values[i] = c.Load(partials + (p + i * kWarps) * width + column);
        }
        MP_UNROLL
        for (int i = 0; i < kAtOnce; ++i) sum += values[i];
      }
      for (; p < count; p += kWarps) sum += c.Load(partials + p * width + column);
    }
    auto parts = c.template Shared<float, kThreads, 0>();
    parts.Set(c.thread(), sum);
    c.Sync();
    if (c.warp() != 0 || column >= width) return;
    for (int w = 1; w < kWarps; ++w) sum += parts.Get(w * kWarp + c.lane());
    float* out = (one ? first.out : second.out) + column;
    c.Store(out, (one ? first.accumulate : second.accumulate) ? c.Load(out) + sum : sum);
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_COLUMN_SUM_KERNELS_H_
