// The kernels behind rope_cuda_kernel.h.
#ifndef MILEPOST_ENGINE_OPS_ROPE_ROPE_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPS_ROPE_ROPE_CUDA_KERNEL_INL_H_

#include <cstdint>

#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/rope/rope_contract.h"

namespace milepost::kernels::cuda {

// A thread has one pair of one position.
struct RopeTableKernel {
  static constexpr int kThreads = 128;
  RopeParams p;
  const int32_t* positions;
  int64_t rows, head_dim;
  float* table;

  Grid grid() const { return {.x = CeilDiv(rows * (head_dim / 2), kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t half = head_dim / 2;
    const int64_t index = c.block() * kThreads + c.thread();
    if (index >= rows * half) return;
    const int64_t t = index / half, i = index % half;
    const int64_t position = positions == nullptr ? t : c.Load(positions + t);
    const double angle = static_cast<double>(position) * RopeFrequency(p, i, head_dim);
    c.Store(table + t * head_dim + i, static_cast<float>(cos(angle)));
    c.Store(table + t * head_dim + half + i, static_cast<float>(sin(angle)));
  }
};

// A block has a row; a thread N pairs of a head at a time. N: 8, or 1 where head_dim / 2 or the
// row's width is no multiple of it.
template <typename T, int N>
struct RopeKernel {
  static constexpr int kThreads = 128;
  RopeShape shape;
  const T* x;
  const float* table;
  float direction;  // 1 forward, -1 backward
  T* out;

  Grid grid() const { return {.x = shape.batch * shape.sequence}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t row = c.block();
    const int64_t position =
        shape.positions == nullptr ? row % shape.sequence : c.Load(shape.positions + row);
    const auto half = static_cast<int>(shape.head_dim / 2), per_head = half / N;
    const auto turned = static_cast<int>(shape.heads * shape.head_dim);
    const float* angles = table + position * shape.head_dim;
    for (int i = c.thread(); i < turned / (2 * N); i += kThreads) {
      const int pair = i % per_head * N;
      Turn(c, row * shape.width + i / per_head * shape.head_dim + pair, angles + pair, half);
    }
    if (out == x) return;
    const int64_t at = row * shape.width;
    for (int64_t i = turned + c.thread() * N; i < shape.width; i += kThreads * N) {
      Write(c, out + at + i, Read<N>(c, x + at + i).v);
    }
  }

 private:
  template <typename Context>
  MP_DEVICE void Turn(Context& c, int64_t at, const float* angles, int half) const {
    auto a = Read<N>(c, x + at), b = Read<N>(c, x + at + half);
    const auto cosine = Read<N>(c, angles);
    const auto sine = Read<N>(c, angles + half);
    MP_UNROLL
    for (int k = 0; k < N; ++k) {
      const float s = sine.v[k] * direction;
      const float as = a.v[k] * s, bs = b.v[k] * s;
      a.v[k] = fmaf(a.v[k], cosine.v[k], -bs);
      b.v[k] = fmaf(b.v[k], cosine.v[k], as);
    }
    Write(c, out + at, a.v);
    Write(c, out + at + half, b.v);
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_ROPE_ROPE_CUDA_KERNEL_INL_H_
