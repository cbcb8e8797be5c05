// The kernels behind flat.h.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_FLAT_KERNELS_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_FLAT_KERNELS_H_

#include <cstdint>

#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/flat.h"
#include "engine/kernels/cuda/stream.h"

namespace milepost::kernels::cuda {

// sums[b] = that of the block's elements. T: float or bf16.
template <typename T>
struct SquaresKernel {
  static constexpr int kThreads = 256;
  const T* x;
  int64_t n;
  double* sums;

  Grid grid() const { return {.x = CeilDiv(n, kSquaresBlock)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t end = n < (c.block() + 1) * kSquaresBlock ? n : (c.block() + 1) * kSquaresBlock;
    double sum = 0;
    MP_UNROLL
    for (int k = 0; k < kSquaresBlock / (kThreads * 4); ++k) {
      const int64_t i = c.block() * kSquaresBlock + (k * kThreads + c.thread()) * 4;
      if (i >= end) continue;
      const auto values = ReadUpTo<4>(c, x + i, end - i);
      MP_UNROLL
      for (int j = 0; j < 4; ++j) {
        const double value = static_cast<double>(values.v[j]);
        sum = fma(value, value, sum);
      }
    }
    sum = BlockSum<kThreads, 0>(c, sum);
    if (c.thread() == 0) c.Store(sums + c.block(), sum);
  }
};

// *out = sum of n numbers; one block.
struct SumKernel {
  static constexpr int kThreads = 1024;
  const double* x;
  int64_t n;
  double* out;

  Grid grid() const { return {.x = 1}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    double sum = 0;
    for (int64_t i = c.thread(); i < n; i += kThreads) sum += c.Load(x + i);
    sum = BlockSum<kThreads, 0>(c, sum);
    if (c.thread() == 0) c.Store(out, sum);
  }
};

// A warp loads 32 values at once and adds them one after the other.
struct SumScalarsKernel {
  static constexpr int kThreads = 32;
  const double* values;
  const int32_t* which;
  int64_t count;
  double* sum;
  const double* stop_asked;
  double* stop;

  Grid grid() const { return {.x = 1}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    double total = 0;
    for (int64_t first = 0; first < count; first += kWarp) {
      const int64_t i = first + c.lane();
      const double value = i < count ? c.Load(values + c.Load(which + i)) : 0.0;
      for (int lane = 0; lane < kWarp && first + lane < count; ++lane) {
        total += c.Shuffle(value, lane);
      }
    }
    if (c.thread() != 0) return;
    c.Store(sum, total);
    c.Store(stop, c.Load(stop_asked));
  }
};

struct DecideKernel {
  static constexpr int kThreads = 32;
  const double* sum_squares;
  const ClipArgs* args;
  UpdateControl* control;

  Grid grid() const { return {.x = 1}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    if (c.thread() != 0) return;
    const ClipArgs clip = c.Load(args);
    const double norm = sqrt(c.Load(sum_squares) / (clip.loss_scale * clip.loss_scale));
    if (!(norm < INFINITY)) {
      c.Store(control, UpdateControl{1.0f, 1u});
      return;
    }
    double scale = 1;
    if (clip.max_norm > 0) scale = fmin(1.0, clip.max_norm / (norm + 1e-6));
    c.Store(control, UpdateControl{static_cast<float>(scale / clip.loss_scale), 0u});
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_FLAT_KERNELS_H_
