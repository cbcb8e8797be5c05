// The kernels behind dora_cuda_kernel.h.
#ifndef MILEPOST_ENGINE_OPS_DORA_DORA_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPS_DORA_DORA_CUDA_KERNEL_INL_H_

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "common/status_macros.h"
#include "engine/kernels/cuda/column_sum_kernels.h"
#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/dora/dora_contract.h"

namespace milepost::kernels::cuda {

inline constexpr int kDoraThreads = 256;

// norms[0, o] = |W_o|^2, of rows: a warp has one. N: kPack<T>, or 1 where rows are no multiples.
template <typename T, int N>
struct DoraRowSquaresKernel {
  static constexpr int kThreads = kDoraThreads;
  DoraNormsArgs<T> a;

  Grid grid() const { return {.x = CeilDiv(a.out, kThreads / kWarp)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t o = c.block() * (kThreads / kWarp) + c.warp();
    if (o >= a.out) return;
    float sum = 0;
    for (int64_t i = c.lane() * N; i < a.in; i += kWarp * N) {
      const auto w = Read<N>(c, a.weight + o * a.in + i);
      MP_UNROLL
      for (int k = 0; k < N; ++k) sum = fmaf(w.v[k], w.v[k], sum);
    }
    sum = WarpSum(c, sum);
    if (c.lane() == 0) c.Store(a.norms + o, sum);
  }
};

// The same of columns: a block has 32, each warp every so many-th row.
template <typename T>
struct DoraColumnSquaresKernel {
  static constexpr int kThreads = kDoraThreads;
  static constexpr int kWarps = kThreads / kWarp;
  DoraNormsArgs<T> a;

  Grid grid() const { return {.x = CeilDiv(a.out, kWarp)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t o = c.block() * kWarp + c.lane();
    float sum = 0;
    for (int64_t i = c.warp(); o < a.out && i < a.in; i += kWarps) {
      const float w = Widen(c.Load(a.weight + i * a.out + o));
      sum = fmaf(w, w, sum);
    }
    auto parts = c.template Shared<float, kThreads, 0>();
    parts.Set(c.thread(), sum);
    c.Sync();
    if (c.warp() != 0 || o >= a.out) return;
    for (int w = 1; w < kWarps; ++w) sum += parts.Get(w * kWarp + c.lane());
    c.Store(a.norms + o, sum);
  }
};

// Both norms from the squares: a warp has an output.
template <typename T>
struct DoraNormsKernel {
  static constexpr int kThreads = kDoraThreads;
  DoraNormsArgs<T> a;

  Grid grid() const { return {.x = CeilDiv(a.out, kThreads / kWarp)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t o = c.block() * (kThreads / kWarp) + c.warp();
    if (o >= a.out) return;
    const T* up = a.up + o * a.rank;
    float change = 0;
    for (int64_t j = c.lane(); j < a.rank; j += kWarp) {
      float with_itself = 0;
      for (int64_t i = 0; i < a.rank; ++i) {  // the matrix is symmetric
        with_itself = fmaf(Widen(c.Load(up + i)), c.Load(a.gram + i * a.rank + j), with_itself);
      }
      const float both = 2 * c.Load(a.products + o * a.rank + j) + a.scale * with_itself;
      change += a.scale * Widen(c.Load(up + j)) * both;
    }
    change = WarpSum(c, change);
    if (c.lane() != 0) return;
    const float squares = c.Load(a.norms + o);
    c.Store(a.norms + o, sqrtf(squares));
    c.Store(a.norms + a.out + o, sqrtf(fmaxf(0.0f, squares + change)));
  }
};

// What each column is multiplied by and, where `biases` is there, what is added. A thread has one.
template <typename T>
struct DoraColumnsKernel {
  static constexpr int kThreads = kDoraThreads;
  DoraArgs<T> a;
  float* factors;
  float* biases;

  Grid grid() const { return {.x = CeilDiv(a.width, kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t column = c.block() * kThreads + c.thread();
    if (column >= a.width) return;
    float factor = 1, bias = 0;
    MP_UNROLL
    for (int i = 0; i < kMostDoraParts; ++i) {
      const DoraColumns<T>& part = a.part[i];
      if (column < part.column || column >= part.end) continue;
      const int64_t at = column - part.column;
      if (part.norms != nullptr) {
        const float norm = c.Load(part.norms + (part.end - part.column) + at);
        factor = DoraFactor(c.Load(part.norms + at), Widen(c.Load(part.change + at)), norm);
      }
      if (part.bias != nullptr) bias = Widen(c.Load(part.bias + at));
    }
    c.Store(factors + column, factor);
    if (biases != nullptr) c.Store(biases + column, bias);
  }
};

// N elements a thread; N: kPack<T>, or 1 where the width is no multiple of it.
template <typename T, int N>
struct DoraForwardKernel {
  static constexpr int kThreads = kDoraThreads;
  int64_t rows, width;
  const T* v;
  const float* factors;
  const float* biases;
  T* y;

  Grid grid() const { return {.x = CeilDiv(rows * (width / N), kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t packs = width / N, i = c.block() * kThreads + c.thread();
    if (i >= rows * packs) return;
    const int64_t column = i % packs * N, at = i / packs * width + column;
    auto values = Read<N>(c, v + at);
    const auto factor = Read<N>(c, factors + column);
    const auto bias = Read<N>(c, biases + column);
    MP_UNROLL
    for (int k = 0; k < N; ++k) values.v[k] = fmaf(values.v[k], factor.v[k], bias.v[k]);
    Write(c, y + at, values.v);
  }
};

// dv, and sums of a block's rows to be added up by ColumnSumKernel: of dy v and of dy, each
// [blocks, width].
template <typename T, int N>
struct DoraBackwardKernel {
  static constexpr int kThreads = 128;
  int64_t rows, width, rows_per_block;
  const T* dy;
  const T* v;
  const float* factors;
  T* dv;
  float* with_v;
  float* alone;

  Grid grid() const {
    return {.x = CeilDiv(rows, rows_per_block), .y = CeilDiv(width, kThreads * N)};
  }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t column = (c.block_y() * kThreads + c.thread()) * N;
    if (column >= width) return;
    const int64_t begin = c.block() * rows_per_block;
    const int64_t end = begin + rows_per_block < rows ? begin + rows_per_block : rows;
    const auto factor = Read<N>(c, factors + column);
    Floats<N> products = {}, sums = {};
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = row * width + column;
      auto gradient = Read<N>(c, dy + at);
      const auto value = Read<N>(c, v + at);
      MP_UNROLL
      for (int k = 0; k < N; ++k) {
        products.v[k] = fmaf(gradient.v[k], value.v[k], products.v[k]);
        sums.v[k] += gradient.v[k];
        gradient.v[k] *= factor.v[k];
      }
      Write(c, dv + at, gradient.v);
    }
    Write(c, with_v + c.block() * width + column, products.v);
    Write(c, alone + c.block() * width + column, sums.v);
  }
};

// From the sums to the gradients. A thread has a column.
template <typename T>
struct DoraGradientsKernel {
  static constexpr int kThreads = kDoraThreads;
  DoraBackwardArgs<T> a;
  const float* with_v;
  const float* alone;

  Grid grid() const { return {.x = CeilDiv(a.width, kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t column = c.block() * kThreads + c.thread();
    if (column >= a.width) return;
    MP_UNROLL
    for (int i = 0; i < kMostDoraParts; ++i) {
      const DoraColumns<T>& part = a.part[i];
      if (column < part.column || column >= part.end) continue;
      const int64_t at = column - part.column;
      const DoraGradients& to = a.gradients[i];
      if (to.change != nullptr) {
        const float norm = c.Load(part.norms + (part.end - part.column) + at);
        Put(c, to.change + at, to.adds_change, DoraShare(c.Load(with_v + column), norm));
      }
      if (to.bias != nullptr) Put(c, to.bias + at, to.adds_bias, c.Load(alone + column));
    }
  }

 private:
  template <typename Context>
  MP_DEVICE static void Put(Context& c, float* to, bool adds, float value) {
    c.Store(to, adds ? c.Load(to) + value : value);
  }
};

// Of a workspace: arrays of a float for each column.
inline float* DoraColumnArray(void* workspace, int64_t width, int i) {
  const int64_t each = DeviceAligned(width * static_cast<int64_t>(sizeof(float)));
  return reinterpret_cast<float*>(static_cast<char*>(workspace) + i * each);
}

// run(kernel) launches it.
template <typename T, typename Run>
absl::Status RunDoraNorms(const DoraNormsArgs<T>& a, const Run& run) {
  const bool packs = a.in % kPack<T> == 0 && reinterpret_cast<uintptr_t>(a.weight) % 16 == 0;
  MP_RETURN_IF_ERROR(!a.transposed ? run(DoraColumnSquaresKernel<T>{a})
                     : packs       ? run(DoraRowSquaresKernel<T, kPack<T>>{a})
                                   : run(DoraRowSquaresKernel<T, 1>{a}));
  return run(DoraNormsKernel<T>{a});
}

template <typename T, typename Run>
absl::Status RunDoraForward(const DoraForwardArgs<T>& a, void* workspace, const Run& run) {
  float* const factors = DoraColumnArray(workspace, a.width, 0);
  float* const biases = DoraColumnArray(workspace, a.width, 1);
  MP_RETURN_IF_ERROR(run(DoraColumnsKernel<T>{a, factors, biases}));
  if (a.width % kPack<T> != 0) {
    return run(DoraForwardKernel<T, 1>{a.rows, a.width, a.v, factors, biases, a.y});
  }
  return run(DoraForwardKernel<T, kPack<T>>{a.rows, a.width, a.v, factors, biases, a.y});
}

template <typename T, typename Run>
absl::Status RunDoraBackward(const DoraBackwardArgs<T>& a, void* workspace, const Run& run) {
  float* const factors = DoraColumnArray(workspace, a.width, 0);
  float* const with_v = DoraColumnArray(workspace, a.width, 1);
  float* const alone = DoraColumnArray(workspace, a.width, 2);
  float* const partial_v = DoraColumnArray(workspace, a.width, 3);
  auto* const partial_alone =
      reinterpret_cast<float*>(reinterpret_cast<char*>(partial_v) +
                               DeviceAligned(BiasGradientWorkspaceBytes(a.rows, a.width)));
  MP_RETURN_IF_ERROR(run(DoraColumnsKernel<T>{a, factors, nullptr}));
  const int64_t each = BiasRowsPerBlock(a.rows);
  const auto rows = [&]<int N>() {
    return run(DoraBackwardKernel<T, N>{a.rows, a.width, each, a.dy, a.v, factors, a.dv, partial_v,
                                        partial_alone});
  };
  MP_RETURN_IF_ERROR(a.width % kPack<T> == 0 ? rows.template operator()<kPack<T>>()
                                             : rows.template operator()<1>());
  MP_RETURN_IF_ERROR(run(ColumnSumKernel{
      {partial_v, false, with_v}, {partial_alone, false, alone}, CeilDiv(a.rows, each), a.width}));
  return run(DoraGradientsKernel<T>{a, with_v, alone});
}

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_DORA_DORA_CUDA_KERNEL_INL_H_
