// The kernels behind elementwise.h.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_ELEMENTWISE_KERNELS_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_ELEMENTWISE_KERNELS_H_

#include <algorithm>
#include <cstdint>

#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/random.h"
#include "engine/kernels/cuda/stream.h"

namespace milepost::kernels::cuda {

// Elements of a thread: one access of a 16-bit type, two of fp32.
inline constexpr int kMapElements = 8;

// out[i] = fn(in[i]).
template <typename Fn, typename In, typename Out>
struct MapKernel {
  static constexpr int kThreads = 256;
  Fn fn;
  const In* in;
  int64_t n;
  Out* out;

  Grid grid() const { return {.x = CeilDiv(n, kThreads * kMapElements)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t i = (c.block() * kThreads + c.thread()) * kMapElements;
    if (i >= n) return;
    auto a = ReadUpTo<kMapElements>(c, in + i, n - i);
    MP_UNROLL
    for (int j = 0; j < kMapElements; ++j) a.v[j] = fn(a.v[j]);
    WriteUpTo(c, out + i, a.v, n - i);
  }
};

// out[i] = fn(a[i], b[i]).
template <typename Fn, typename A, typename B = A>
struct PairKernel {
  static constexpr int kThreads = 256;
  Fn fn;
  const A* a;
  const B* b;
  int64_t n;
  A* out;

  Grid grid() const { return {.x = CeilDiv(n, kThreads * kMapElements)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t i = (c.block() * kThreads + c.thread()) * kMapElements;
    if (i >= n) return;
    auto x = ReadUpTo<kMapElements>(c, a + i, n - i);
    const auto y = ReadUpTo<kMapElements>(c, b + i, n - i);
    MP_UNROLL
    for (int j = 0; j < kMapElements; ++j) x.v[j] = fn(x.v[j], y.v[j]);
    WriteUpTo(c, out + i, x.v, n - i);
  }
};

struct SameFn {
  MP_DEVICE float operator()(float x) const { return x; }
};
struct ScaleFn {
  float factor;
  MP_DEVICE float operator()(float x) const { return x * factor; }
};
struct AddFn {
  MP_DEVICE float operator()(float x, float y) const { return x + y; }
};

MP_DEVICE float Logistic(float x) { return 1.0f / (1.0f + expf(-x)); }

struct FillKernel {
  static constexpr int kThreads = 256;
  float* out;
  int64_t n;
  float value;

  Grid grid() const { return {.x = CeilDiv(n, kThreads * 4)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t i = (c.block() * kThreads + c.thread()) * 4;
    const float values[4] = {value, value, value, value};
    if (i < n) WriteUpTo(c, out + i, values, n - i);
  }
};

// A thread has the 32 elements whose random words eight Philox calls give: 8 at each of e, e + 16,
// e + 32 and e + 48 of the stream.
template <typename T>
struct DropoutKernel {
  static constexpr int kThreads = 256;
  const T* x;
  int64_t n;
  DropoutMask mask;
  T* y;

  // Elements that are neighbours in the stream: a row of blocks has them.
  MP_BOTH int64_t RunElements() const {
    return mask.own_elements == 0 ? n : static_cast<int64_t>(mask.own_elements);
  }
  // The stream's groups of 64 that they touch at most.
  Grid grid() const {
    return {.x = CeilDiv((RunElements() / 64 + 2) * 2, kThreads),
            .y = mask.own_elements == 0 ? 1 : n / RunElements()};
  }

  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const StepPosition at = {c.Load(&mask.position->step), c.Load(&mask.position->first_sample)};
    const int64_t run = RunElements(), begin = c.block_y() * run;
    const uint64_t first = mask.ElementOf(at.first_sample, static_cast<uint64_t>(begin));
    const int64_t item = c.block() * kThreads + c.thread();
    // Relative to the run: begins before it where the stream's group does.
    const int64_t base = item / 2 * 64 + item % 2 * 8 - static_cast<int64_t>(first % 64);
    if (base >= run) return;
    const MaskItem keep = MaskOfItem(mask, first + base, at.step);
    const bool aligned = first % 8 == 0 && begin % 8 == 0;
    MP_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int64_t i = base + 16 * j;
      const T* from = x + begin + i;
      T* to = y + begin + i;
      if (aligned && i >= 0 && i < run) {
        auto values = ReadUpTo<8>(c, from, run - i);
        MP_UNROLL
        for (int k = 0; k < 8; ++k) values.v[k] *= keep.keep[j][k];
        WriteUpTo(c, to, values.v, run - i);
      } else if (!aligned) {
        MP_UNROLL
        for (int k = 0; k < 8; ++k) {
          if (i + k < 0 || i + k >= run) continue;
          c.Store(to + k, Narrow<T>(Widen(c.Load(from + k)) * keep.keep[j][k]));
        }
      }
    }
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_ELEMENTWISE_KERNELS_H_
