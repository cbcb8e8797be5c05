// LAMB's kernels. A block has a chunk, a thread four elements at a time.
#ifndef MILEPOST_ENGINE_OPTIM_LAMB_LAMB_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPTIM_LAMB_LAMB_CUDA_KERNEL_INL_H_

#include <cstdint>

#include "engine/kernels/cuda/context.h"
#include "engine/optim/adamw/adamw_cuda_kernel-inl.h"
#include "engine/optim/lamb/lamb_cuda_kernel.h"

namespace milepost::kernels::cuda {

// AdamW's update, its learning rate left out and weight decay in it.
MP_DEVICE float LambUpdate(const StepFactors& s, const SegmentFactors& f, float p, float m,
                           float v) {
  return fmaf(f.decay, p, m * s.root1 / fmaf(sqrtf(v), s.root2, s.epsilon));
}

struct LambMomentsKernel {
  static constexpr int kThreads = 256;
  FlatUpdate<float> a;
  double* sums;  // of each chunk: of p^2, of the update^2

  Grid grid() const { return {.x = a.chunk_count}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const UpdateControl control = c.Load(a.control);
    if (control.skip != 0) return;
    const FlatChunk chunk = c.Load(a.chunks + c.block());
    const SegmentFactors f = c.Load(a.factors + chunk.segment);
    const StepFactors s = c.Load(a.step);
    double p_sum = 0, u_sum = 0;
    for (int at = c.thread() * 4; at < chunk.count; at += kThreads * 4) {
      const int64_t i = chunk.begin + at, count = chunk.count - at;
      const auto p = ReadUpTo<4>(c, a.p + i, count);
      const auto g = ReadUpTo<4>(c, a.g + i, count);
      auto m = ReadUpTo<4>(c, a.states[0] + i, count);
      auto v = ReadUpTo<4>(c, a.states[1] + i, count);
      MP_UNROLL
      for (int k = 0; k < 4; ++k) {
        float unused = p.v[k];
        AdamWRule::Apply(s, f, control.gradient_scale, g.v[k], unused, m.v[k], v.v[k]);
        if (k >= count) continue;
        const double u = LambUpdate(s, f, p.v[k], m.v[k], v.v[k]);
        p_sum = fma(static_cast<double>(p.v[k]), static_cast<double>(p.v[k]), p_sum);
        u_sum = fma(u, u, u_sum);
      }
      WriteUpTo(c, a.states[0] + i, m.v, count);
      WriteUpTo(c, a.states[1] + i, v.v, count);
    }
    p_sum = BlockSum<kThreads, 0>(c, p_sum);
    u_sum = BlockSum<kThreads, 0>(c, u_sum);
    if (c.thread() != 0) return;
    c.Store(sums + 2 * c.block(), p_sum);
    c.Store(sums + 2 * c.block() + 1, u_sum);
  }
};

// A block has a tensor: the sums of its chunks.
struct LambNormsKernel {
  static constexpr int kThreads = 128;
  const UpdateControl* control;
  const FlatRange* ranges;
  int64_t tensor_count;
  const double* sums;
  double* norms;

  Grid grid() const { return {.x = tensor_count}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    if (c.Load(&control->skip) != 0) return;
    const FlatRange range = c.Load(ranges + c.block());
    double p = 0, u = 0;
    for (int64_t i = range.begin + c.thread(); i < range.end; i += kThreads) {
      p += c.Load(sums + 2 * i);
      u += c.Load(sums + 2 * i + 1);
    }
    p = BlockSum<kThreads, 0>(c, p);
    u = BlockSum<kThreads, 0>(c, u);
    if (c.thread() != 0) return;
    c.Store(norms + 2 * c.block(), p);
    c.Store(norms + 2 * c.block() + 1, u);
  }
};

template <typename T>
struct LambApplyKernel {
  static constexpr int kThreads = 256;
  FlatUpdate<T> a;
  const double* norms;

  Grid grid() const { return {.x = a.chunk_count}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    if (c.Load(&a.control->skip) != 0) return;
    const FlatChunk chunk = c.Load(a.chunks + c.block());
    const SegmentFactors f = c.Load(a.factors + chunk.segment);
    const StepFactors s = c.Load(a.step);
    float rate = f.rate;
    if (f.norms >= 0) {
      const double p = c.Load(norms + 2 * f.norms), u = c.Load(norms + 2 * f.norms + 1);
      if (p > 0 && u > 0) rate *= static_cast<float>(sqrt(p / u));
    }
    for (int at = c.thread() * 4; at < chunk.count; at += kThreads * 4) {
      const int64_t i = chunk.begin + at, count = chunk.count - at;
      auto p = ReadUpTo<4>(c, a.p + i, count);
      const auto m = ReadUpTo<4>(c, a.states[0] + i, count);
      const auto v = ReadUpTo<4>(c, a.states[1] + i, count);
      MP_UNROLL
      for (int k = 0; k < 4; ++k) {
        p.v[k] = fmaf(-rate, LambUpdate(s, f, p.v[k], m.v[k], v.v[k]), p.v[k]);
      }
      WriteUpTo(c, a.p + i, p.v, count);
      if (a.copy != nullptr) WriteUpTo(c, a.copy + i, p.v, count);
    }
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPTIM_LAMB_LAMB_CUDA_KERNEL_INL_H_
