// Muon's kernels. A block has a chunk, a thread four elements at a time.
#ifndef MILEPOST_ENGINE_OPTIM_MUON_MUON_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPTIM_MUON_MUON_CUDA_KERNEL_INL_H_

#include <cstdint>

#include "engine/kernels/cuda/context.h"
#include "engine/optim/muon/muon_cuda_kernel.h"

namespace milepost::kernels::cuda {

struct MuonMomentumKernel {
  static constexpr int kThreads = 256;
  const StepFactors* step;
  bool nesterov;
  const UpdateControl* control;
  int64_t n;
  float* m;
  const float* g;
  float* u;

  Grid grid() const { return {.x = CeilDiv(n, kThreads * 4)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const UpdateControl at = c.Load(control);
    const int64_t i = (c.block() * kThreads + c.thread()) * 4;
    if (at.skip != 0 || i >= n) return;
    const float momentum = c.Load(&step->momentum), rest = 1.0f - momentum;
    auto gradient = ReadUpTo<4>(c, g + i, n - i);
    auto moment = ReadUpTo<4>(c, m + i, n - i);
    MP_UNROLL
    for (int k = 0; k < 4; ++k) {
      const float grad = gradient.v[k] * at.gradient_scale * rest;
      moment.v[k] = fmaf(momentum, moment.v[k], grad);
      gradient.v[k] = nesterov ? fmaf(momentum, moment.v[k], grad) : moment.v[k];
    }
    WriteUpTo(c, m + i, moment.v, n - i);
    WriteUpTo(c, u + i, gradient.v, n - i);
  }
};

// out may be x.
template <typename T>
struct MuonNormaliseKernel {
  static constexpr int kThreads = 256;
  const double* sum_squares;
  int64_t n;
  const float* x;
  T* out;

  Grid grid() const { return {.x = CeilDiv(n, kThreads * 4)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t i = (c.block() * kThreads + c.thread()) * 4;
    if (i >= n) return;
    const double norm = sqrt(c.Load(sum_squares));
    auto values = ReadUpTo<4>(c, x + i, n - i);
    if constexpr (sizeof(T) == 4) {
      const auto factor = static_cast<float>(1.0 / fmax(norm, 1e-7));
      MP_UNROLL
      for (int k = 0; k < 4; ++k) values.v[k] *= factor;
    } else {
      const float divisor = fmaxf(Widen(Narrow<T>(static_cast<float>(norm))), 1e-7f);
      MP_UNROLL
      for (int k = 0; k < 4; ++k) values.v[k] = Widen(Narrow<T>(values.v[k])) / divisor;
    }
    WriteUpTo(c, out + i, values.v, n - i);
  }
};

struct MuonMixFn {
  float b, c;
  MP_DEVICE float operator()(float x, float y) const { return fmaf(b, x, c * y); }
};

template <typename T>
struct MuonApplyKernel {
  static constexpr int kThreads = 256;
  FlatUpdate<T> a;

  Grid grid() const { return {.x = a.chunk_count}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    if (c.Load(&a.control->skip) != 0) return;
    const FlatChunk chunk = c.Load(a.chunks + c.block());
    const SegmentFactors f = c.Load(a.factors + chunk.segment);
    for (int at = c.thread() * 4; at < chunk.count; at += kThreads * 4) {
      const int64_t i = chunk.begin + at, count = chunk.count - at;
      auto p = ReadUpTo<4>(c, a.p + i, count);
      const auto u = ReadUpTo<4>(c, a.g + i, count);
      MP_UNROLL
      for (int k = 0; k < 4; ++k) p.v[k] = fmaf(-f.rate, u.v[k], p.v[k] * f.shrink);
      WriteUpTo(c, a.p + i, p.v, count);
      if (a.copy != nullptr) WriteUpTo(c, a.copy + i, p.v, count);
    }
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPTIM_MUON_MUON_CUDA_KERNEL_INL_H_
