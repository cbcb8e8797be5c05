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

// gelu(x) = x s(2u), u = sqrt(2/pi) (x + 0.044715 x^3), s the logistic function: the same as the
// tanh form, without a tanh.
inline constexpr float kGelu1 = 1.5957691216f;              // 2 sqrt(2/pi)
inline constexpr float kGelu3 = 1.5957691216f * 0.044715f;  // of x^3

struct GeluFn {
  MP_DEVICE float operator()(float x) const {
    return x * Logistic(x * fmaf(x * x, kGelu3, kGelu1));
  }
};
struct GeluBackwardFn {
  MP_DEVICE float operator()(float x, float dy) const {
    const float x2 = x * x;
    const float s = Logistic(x * fmaf(x2, kGelu3, kGelu1));
    const float slope = fmaf(x2, 3.0f * kGelu3, kGelu1);
    return dy * (s + x * slope * fmaf(-s, s, s));
  }
};
// 1 / x within 2 units in the last place, x in [1, 2^126].
MP_DEVICE float ReciprocalOf(float x) {
#if defined(__CUDA_ARCH__)
  return __fdividef(1.0f, x);
#else
  return 1.0f / x;
#endif
}

// Phi(x) of the normal distribution, and exp(-x^2 / 2). By ops/gelu/gelu_erf_cpu_kernel.cc's
// polynomial, relative error 2.3e-7: with the device's erfcf the arithmetic is what a GELU waits
// for.
struct Normal {
  float cumulative, bell;
};
MP_DEVICE Normal NormalOf(float x) {
  const float z = fabsf(x) * 0.7071067812f;
  const float t = ReciprocalOf(fmaf(z, 0.4f, 1.0f));
  float p = 4.415425682e-02f;
  p = fmaf(p, t, -1.544068665e-01f);
  p = fmaf(p, t, 1.130286585e-01f);
  p = fmaf(p, t, 5.486421143e-02f);
  p = fmaf(p, t, 1.024988499e-01f);
  p = fmaf(p, t, 1.837786492e-01f);
  p = fmaf(p, t, 2.043221965e-01f);
  p = fmaf(p, t, 2.261064723e-01f);
  p = fmaf(p, t, 2.256536481e-01f);
  const float bell = expf(-z * z);
  const float tail = 0.5f * t * (p * bell);
  return {x < 0 ? tail : 1.0f - tail, bell};
}

// x Phi(x).
struct GeluErfFn {
  MP_DEVICE float operator()(float x) const { return x * NormalOf(x).cumulative; }
};
struct GeluErfBackwardFn {
  MP_DEVICE float operator()(float x, float dy) const {
    const Normal normal = NormalOf(x);
    return dy * fmaf(x, 0.3989422804f * normal.bell, normal.cumulative);
  }
};

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

// Blocks of a kernel that gives each row whole blocks of kThreads * N columns.
template <int kThreads, int N>
Grid RowGrid(int64_t rows, int64_t width) {
  return {.x = rows * CeilDiv(width, kThreads * N)};
}

// N: 8 where width is a multiple of it, else 1.
template <typename T, int N>
struct SwiGluForwardKernel {
  static constexpr int kThreads = 256;
  const T* x;
  int64_t rows, width;
  T* y;

  Grid grid() const { return RowGrid<kThreads, N>(rows, width); }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t blocks = CeilDiv(width, kThreads * N);
    const int64_t row = c.block() / blocks;
    const int64_t i = (c.block() % blocks * kThreads + c.thread()) * N;
    if (i >= width) return;
    auto gate = Read<N>(c, x + row * 2 * width + i);
    const auto up = Read<N>(c, x + (row * 2 + 1) * width + i);
    MP_UNROLL
    for (int j = 0; j < N; ++j) gate.v[j] = gate.v[j] * Logistic(gate.v[j]) * up.v[j];
    Write(c, y + row * width + i, gate.v);
  }
};

// With s = logistic(gate): silu' = s + gate s (1 - s).
template <typename T, int N>
struct SwiGluBackwardKernel {
  static constexpr int kThreads = 256;
  const T* x;
  const T* dy;
  int64_t rows, width;
  T* dx;

  Grid grid() const { return RowGrid<kThreads, N>(rows, width); }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t blocks = CeilDiv(width, kThreads * N);
    const int64_t row = c.block() / blocks;
    const int64_t i = (c.block() % blocks * kThreads + c.thread()) * N;
    if (i >= width) return;
    auto gate = Read<N>(c, x + row * 2 * width + i);
    auto up = Read<N>(c, x + (row * 2 + 1) * width + i);
    const auto gradient = Read<N>(c, dy + row * width + i);
    MP_UNROLL
    for (int j = 0; j < N; ++j) {
      const float g = gate.v[j];
      const float s = Logistic(g);
      gate.v[j] = gradient.v[j] * (up.v[j] * fmaf(g, fmaf(-s, s, s), s));
      up.v[j] = gradient.v[j] * (g * s);
    }
    Write(c, dx + row * 2 * width + i, gate.v);
    Write(c, dx + (row * 2 + 1) * width + i, up.v);
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

  // The stream's groups of 64 that n elements touch at most.
  Grid grid() const { return {.x = CeilDiv((n / 64 + 2) * 2, kThreads)}; }

  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const StepPosition at = {c.Load(&mask.position->step), c.Load(&mask.position->first_sample)};
    const uint64_t first = at.first_sample * mask.elements_per_sample;
    const int64_t item = c.block() * kThreads + c.thread();
    // Relative to x: begins before it where the stream's group does.
    const int64_t base = item / 2 * 64 + item % 2 * 8 - static_cast<int64_t>(first % 64);
    if (base >= n) return;
    const MaskItem keep = MaskOfItem(mask, first + base, at.step);
    const bool aligned = first % 8 == 0;
    MP_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int64_t i = base + 16 * j;
      if (aligned && i >= 0 && i < n) {
        auto values = ReadUpTo<8>(c, x + i, n - i);
        MP_UNROLL
        for (int k = 0; k < 8; ++k) values.v[k] *= keep.keep[j][k];
        WriteUpTo(c, y + i, values.v, n - i);
      } else if (!aligned) {
        MP_UNROLL
        for (int k = 0; k < 8; ++k) {
          if (i + k < 0 || i + k >= n) continue;
          c.Store(y + i + k, Narrow<T>(Widen(c.Load(x + i + k)) * keep.keep[j][k]));
        }
      }
    }
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_ELEMENTWISE_KERNELS_H_
