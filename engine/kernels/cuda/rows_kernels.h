// The kernels behind rows.h: an element a thread.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_ROWS_KERNELS_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_ROWS_KERNELS_H_

#include <cstdint>

#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/stream.h"

namespace milepost::kernels::cuda {

template <typename T>
struct TakeRowKernel {
  static constexpr int kThreads = 256;
  const T* x;
  int64_t batch, sequence, width;
  const int64_t* row;
  T* out;

  Grid grid() const { return {.x = CeilDiv(batch * width, kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t i = c.block() * kThreads + c.thread();
    if (i >= batch * width) return;
    const int64_t from = i / width * sequence + c.Load(row);
    c.Store(out + i, c.Load(x + from * width + i % width));
  }
};

template <typename T>
struct AddBiasKernel {
  static constexpr int kThreads = 256;
  const T* bias;
  int64_t rows, width;
  float* x;

  Grid grid() const { return {.x = CeilDiv(rows * width, kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t i = c.block() * kThreads + c.thread();
    if (i < rows * width) c.Store(x + i, c.Load(x + i) + Widen(c.Load(bias + i % width)));
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_ROWS_KERNELS_H_
