// The second half of sums over rows: partial sums, one per block of an earlier kernel, are added in
// block order.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_COLUMN_SUM_KERNELS_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_COLUMN_SUM_KERNELS_H_

#include <cstdint>

#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/stream.h"

namespace milepost::kernels::cuda {

// out[i] (+)= sum over p of partials[p, i]. A block has 32 columns, each warp every eighth partial.
struct ColumnSumKernel {
  static constexpr int kThreads = 256;
  static constexpr int kAtOnce = 8;
  const float* partials;
  int64_t count, width;
  bool accumulate;
  float* out;

  Grid grid() const { return {.x = CeilDiv(width, kWarp)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    constexpr int kWarps = kThreads / kWarp;
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
    c.Store(out + column, accumulate ? c.Load(out + column) + sum : sum);
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_COLUMN_SUM_KERNELS_H_
