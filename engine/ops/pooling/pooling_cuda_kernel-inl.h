// The kernels behind pooling_cuda_kernel.h. A thread has N channels of a pixel: 8, or 1 where their
// number is no multiple of it.
#ifndef MILEPOST_ENGINE_OPS_POOLING_POOLING_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPS_POOLING_POOLING_CUDA_KERNEL_INL_H_

#include <cstdint>

#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/pooling/pooling_contract.h"

namespace milepost::kernels::cuda {

template <typename T, int N>
struct MaxPoolForwardKernel {
  static constexpr int kThreads = 256;
  PoolSpec s;
  int64_t rows, columns;  // of y
  const T* x;
  T* y;
  uint8_t* winners;

  int64_t pieces() const { return s.batch * rows * columns * (s.channels / N); }
  Grid grid() const { return {.x = CeilDiv(pieces(), kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t per_pixel = s.channels / N;
    const int64_t index = c.block() * kThreads + c.thread();
    const int64_t pixel = index / per_pixel, channel = index % per_pixel * N;
    if (pixel >= s.batch * rows * columns) return;
    const T* image = x + pixel / (rows * columns) * s.height * s.width * s.channels + channel;
    const int64_t top = pixel / columns % rows * s.stride - s.padding;
    const int64_t left = pixel % columns * s.stride - s.padding;
    float best[N] = {};
    Pack<uint8_t, N> winner = {};
    bool none = true;
    for (int64_t k = 0; k < s.kernel * s.kernel; ++k) {
      const int64_t row = top + k / s.kernel, column = left + k % s.kernel;
      if (row < 0 || row >= s.height || column < 0 || column >= s.width) continue;
      const auto v = Read<N>(c, image + (row * s.width + column) * s.channels);
      MP_UNROLL
      for (int i = 0; i < N; ++i) {
        if (!none && !(v.v[i] > best[i]) && v.v[i] == v.v[i]) continue;
        best[i] = v.v[i];
        winner.v[i] = static_cast<uint8_t>(k);
      }
      none = false;
    }
    Write(c, y + pixel * s.channels + channel, best);
    c.Store(reinterpret_cast<Pack<uint8_t, N>*>(winners + pixel * s.channels + channel), winner);
  }
};

// What the windows that a pixel won in pass back to it.
template <typename T, int N>
struct MaxPoolBackwardKernel {
  static constexpr int kThreads = 256;
  PoolSpec s;
  int64_t rows, columns;  // of y
  const uint8_t* winners;
  const T* dy;
  const T* dy2;
  T* dx;

  Grid grid() const {
    return {.x = CeilDiv(s.batch * s.height * s.width * (s.channels / N), kThreads)};
  }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t per_pixel = s.channels / N;
    const int64_t index = c.block() * kThreads + c.thread();
    const int64_t pixel = index / per_pixel, channel = index % per_pixel * N;
    if (pixel >= s.batch * s.height * s.width) return;
    const int64_t image = pixel / (s.height * s.width);
    const int64_t h = pixel / s.width % s.height, w = pixel % s.width;
    float sum[N] = {};
    for (int64_t p = First(h); p < Last(h, rows); ++p) {
      for (int64_t q = First(w); q < Last(w, columns); ++q) {
        const int64_t at = ((image * rows + p) * columns + q) * s.channels + channel;
        const int64_t own =
            (h - (p * s.stride - s.padding)) * s.kernel + w - (q * s.stride - s.padding);
        auto g = Read<N>(c, dy + at);
        if (dy2 != nullptr) {
          const auto more = Read<N>(c, dy2 + at);
          MP_UNROLL
          for (int i = 0; i < N; ++i) g.v[i] += more.v[i];
        }
        const auto winner = c.Load(reinterpret_cast<const Pack<uint8_t, N>*>(winners + at));
        MP_UNROLL
        for (int i = 0; i < N; ++i) sum[i] += winner.v[i] == own ? g.v[i] : 0.0f;
      }
    }
    Write(c, dx + pixel * s.channels + channel, sum);
  }

 private:
  // The windows that hold pixel `at` along one axis.
  MP_DEVICE int64_t First(int64_t at) const {
    return at + s.padding < s.kernel ? 0 : (at + s.padding - s.kernel) / s.stride + 1;
  }
  MP_DEVICE int64_t Last(int64_t at, int64_t count) const {
    const int64_t last = (at + s.padding) / s.stride + 1;
    return last < count ? last : count;
  }
};

// A thread has one channel of an image.
template <typename T>
struct AveragePoolForwardKernel {
  static constexpr int kThreads = 64;
  const T* x;
  int64_t batch, pixels, channels;
  T* y;

  Grid grid() const { return {.x = CeilDiv(batch * channels, kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t index = c.block() * kThreads + c.thread();
    if (index >= batch * channels) return;
    const T* at = x + index / channels * pixels * channels + index % channels;
    float sum = 0;
    for (int64_t i = 0; i < pixels; ++i) sum += Widen(c.Load(at + i * channels));
    c.Store(y + index, Narrow<T>(sum / static_cast<float>(pixels)));
  }
};

template <typename T>
struct AveragePoolBackwardKernel {
  static constexpr int kThreads = 256;
  const T* dy;
  int64_t batch, pixels, channels;
  T* dx;

  Grid grid() const { return {.x = CeilDiv(batch * pixels * channels, kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t i = c.block() * kThreads + c.thread();
    if (i >= batch * pixels * channels) return;
    const int64_t from = i / (pixels * channels) * channels + i % channels;
    c.Store(dx + i, Narrow<T>(Widen(c.Load(dy + from)) / static_cast<float>(pixels)));
  }
};

template <typename T>
struct LookUpKernel {
  static constexpr int kThreads = 256;
  const uint8_t* x;
  int64_t n, channels;
  const T* table;
  T* y;

  Grid grid() const { return {.x = CeilDiv(n, kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t i = c.block() * kThreads + c.thread();
    if (i < n) c.Store(y + i, c.Load(table + i % channels * 256 + c.Load(x + i)));
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_POOLING_POOLING_CUDA_KERNEL_INL_H_
