// The kernels behind gated activations on packed rows, for the rooms that differ in the activation
// alone.
//
//   struct SiluGate {
//     MP_DEVICE static float Value(float gate);
//     MP_DEVICE static Activated WithSlope(float gate);
//   };
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_GATED_ROWS_KERNELS_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_GATED_ROWS_KERNELS_H_

#include <cstdint>

#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/stream.h"

namespace milepost::kernels::cuda {

struct Activated {
  float value, slope;
};

// Blocks of a kernel that gives each row whole blocks of kThreads * N columns.
template <int kThreads, int N>
Grid RowGrid(int64_t rows, int64_t width) {
  return {.x = rows * CeilDiv(width, kThreads * N)};
}

// x [rows, 2 width]: gate, then up; y [rows, width] = activation(gate) up. N: 8 where width is a
// multiple of it, else 1.
template <typename Gate, typename T, int N>
struct GatedForwardKernel {
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
    for (int j = 0; j < N; ++j) gate.v[j] = Gate::Value(gate.v[j]) * up.v[j];
    Write(c, y + row * width + i, gate.v);
  }
};

// dx [rows, 2 width], from dy [rows, width]. dx may be x.
template <typename Gate, typename T, int N>
struct GatedBackwardKernel {
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
      const Activated activated = Gate::WithSlope(gate.v[j]);
      gate.v[j] = gradient.v[j] * (up.v[j] * activated.slope);
      up.v[j] = gradient.v[j] * activated.value;
    }
    Write(c, dx + row * 2 * width + i, gate.v);
    Write(c, dx + (row * 2 + 1) * width + i, up.v);
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_GATED_ROWS_KERNELS_H_
