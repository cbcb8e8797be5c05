// The kernels behind qk_norm_cuda_kernel.h. A warp has a head of a row; a lane kElements of it, N
// side by side.
#ifndef MILEPOST_ENGINE_OPS_QK_NORM_QK_NORM_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPS_QK_NORM_QK_NORM_CUDA_KERNEL_INL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "common/status_macros.h"
#include "engine/kernels/cuda/column_sum_kernels.h"
#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/qk_norm/qk_norm_contract.h"

namespace milepost::kernels::cuda {

inline constexpr int kHeadElements = 256 / kWarp;  // of a lane, of the widest head

// A lane's share of a head; N: 4, or 1 where head_dim is no multiple of it.
template <int N>
struct HeadShare {
  static constexpr int kPieces = kHeadElements / N;
  float v[kPieces][N];

  MP_DEVICE static int Column(int lane, int piece) { return (piece * kWarp + lane) * N; }
  template <typename Context, typename T>
  MP_DEVICE static HeadShare Of(Context& c, const T* head, int64_t head_dim) {
    HeadShare share = {};
    MP_UNROLL
    for (int j = 0; j < kPieces; ++j) {
      const int column = Column(c.lane(), j);
      if (column >= head_dim) continue;
      const auto piece = Read<N>(c, head + column);
      MP_UNROLL
      for (int k = 0; k < N; ++k) share.v[j][k] = piece.v[k];
    }
    return share;
  }
  template <typename Context, typename T>
  MP_DEVICE void Put(Context& c, T* head, int64_t head_dim) const {
    MP_UNROLL
    for (int j = 0; j < kPieces; ++j) {
      const int column = Column(c.lane(), j);
      if (column < head_dim) Write(c, head + column, v[j]);
    }
  }
  // sum += a b, element by element.
  MP_DEVICE void AddProduct(const HeadShare& a, const HeadShare& b) {
    MP_UNROLL
    for (int i = 0; i < kHeadElements; ++i) {
      v[i / N][i % N] = fmaf(a.v[i / N][i % N], b.v[i / N][i % N], v[i / N][i % N]);
    }
  }
  template <typename Context>
  MP_DEVICE float Dot(Context& c, const HeadShare& other) const {
    float sum = 0;
    MP_UNROLL
    for (int i = 0; i < kHeadElements; ++i) {
      sum = fmaf(v[i / N][i % N], other.v[i / N][i % N], sum);
    }
    return WarpSum(c, sum);
  }
  // Element by element, with (offset + gamma).
  MP_DEVICE HeadShare Times(const HeadShare& gamma, float offset) const {
    HeadShare out;
    MP_UNROLL
    for (int i = 0; i < kHeadElements; ++i) {
      out.v[i / N][i % N] = v[i / N][i % N] * (gamma.v[i / N][i % N] + offset);
    }
    return out;
  }
  MP_DEVICE void Scale(float factor) {
    MP_UNROLL
    for (int i = 0; i < kHeadElements; ++i) v[i / N][i % N] *= factor;
  }
};

template <typename Context, typename Share>
MP_DEVICE float ReciprocalRms(Context& c, const Share& x, const QkNormShape& s) {
  return 1.0f / sqrtf(x.Dot(c, x) / static_cast<float>(s.head_dim) + s.epsilon);
}

// Heads of all rows, one after the other; those of values are passed on.
inline int64_t AllHeads(const QkNormShape& s) { return s.rows * (s.heads + 2 * s.kv_heads); }

template <typename T, int N>
struct QkNormForwardKernel {
  static constexpr int kThreads = 256;
  using Share = HeadShare<N>;
  QkNormShape s;
  const T* qkv;
  const T* gamma_q;
  const T* gamma_k;
  T* out;

  Grid grid() const { return {.x = CeilDiv(AllHeads(s), kThreads / kWarp)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t per_row = s.heads + 2 * s.kv_heads;
    const int64_t index = c.block() * (kThreads / kWarp) + c.warp();
    if (index >= s.rows * per_row) return;
    const int64_t head = index % per_row;
    const bool value = head >= s.heads + s.kv_heads;
    if (value && out == qkv) return;
    Share x = Share::Of(c, qkv + index * s.head_dim, s.head_dim);
    if (!value) {
      const float rms = ReciprocalRms(c, x, s);
      x.Scale(rms);
      x = x.Times(Share::Of(c, head < s.heads ? gamma_q : gamma_k, s.head_dim), s.gamma_offset);
    }
    x.Put(c, out + index * s.head_dim, s.head_dim);
  }
};

// With xhat = x rms and g = dy gamma: dx = rms (g - xhat mean(g xhat)); dgamma += dy xhat, the last
// into partials of the warp, [blocks * 8, head_dim].
template <typename T, int N>
struct QkNormBackwardKernel {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / kWarp;
  static_assert(kWarps == kQkNormWarps);
  using Share = HeadShare<N>;
  QkNormShape s;
  QkNormBackwardArgs<T> a;
  float* partial_q;
  float* partial_k;

  Grid grid() const { return {.x = QkNormBackwardBlocks(s)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t per_row = s.heads + 2 * s.kv_heads;
    const int64_t warp = c.block() * kWarps + c.warp();
    Share sum_q = {}, sum_k = {};
    for (int64_t index = warp; index < s.rows * per_row; index += c.blocks() * kWarps) {
      const int64_t head = index % per_row, at = index * s.head_dim;
      Share dy = Share::Of(c, a.dout + at, s.head_dim);
      if (head >= s.heads + s.kv_heads) {
        if (a.dqkv != a.dout) dy.Put(c, a.dqkv + at, s.head_dim);
        continue;
      }
      // Two calls: a reference to either sum would put both into memory.
      float rms = 0;
      if (head < s.heads) {
        rms = Head(c, at, a.gamma_q, dy, sum_q);
      } else {
        rms = Head(c, at, a.gamma_k, dy, sum_k);
      }
      dy.Scale(rms);
      dy.Put(c, a.dqkv + at, s.head_dim);
    }
    sum_q.Put(c, partial_q + warp * s.head_dim, s.head_dim);
    sum_k.Put(c, partial_k + warp * s.head_dim, s.head_dim);
  }

 private:
  // dy becomes g - xhat mean(g xhat).
  template <typename Context>
  MP_DEVICE float Head(Context& c, int64_t at, const T* gamma, Share& dy, Share& sum) const {
    Share xhat = Share::Of(c, a.qkv + at, s.head_dim);
    const float rms = ReciprocalRms(c, xhat, s);
    xhat.Scale(rms);
    sum.AddProduct(dy, xhat);
    dy = dy.Times(Share::Of(c, gamma, s.head_dim), s.gamma_offset);
    const float mean = dy.Dot(c, xhat) * (1.0f / static_cast<float>(s.head_dim));
    xhat.Scale(-mean);
    MP_UNROLL
    for (int i = 0; i < kHeadElements; ++i) dy.v[i / N][i % N] += xhat.v[i / N][i % N];
    return rms;
  }
};

// Sums of a block's rows, to be added up by ColumnSumKernel: partials [blocks, width].
template <typename T, int N>
struct BiasGradientKernel {
  static constexpr int kThreads = 128;
  const T* dy;
  int64_t rows, width, row_stride, rows_per_block;
  float* partials;

  Grid grid() const {
    return {.x = CeilDiv(rows, rows_per_block), .y = CeilDiv(width, kThreads * N)};
  }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t column = (c.block_y() * kThreads + c.thread()) * N;
    if (column >= width) return;
    const int64_t begin = c.block() * rows_per_block;
    const int64_t end = begin + rows_per_block < rows ? begin + rows_per_block : rows;
    Floats<N> sum = {};
    constexpr int kAtOnce = 8;  // loads; sums are in order
    int64_t row = begin;
    for (; row + kAtOnce <= end; row += kAtOnce) {
      Floats<N> values[kAtOnce];
      MP_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        values[i] = Read<N>(c, dy + (row + i) * row_stride + column);
      }
      MP_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        MP_UNROLL
        for (int k = 0; k < N; ++k) sum.v[k] += values[i].v[k];
      }
    }
    for (; row < end; ++row) {
      const auto values = Read<N>(c, dy + row * row_stride + column);
      MP_UNROLL
      for (int k = 0; k < N; ++k) sum.v[k] += values.v[k];
    }
    Write(c, partials + c.block() * width + column, sum.v);
  }
};

// run(kernel) launches it.
template <typename T, typename Run>
absl::Status RunBiasGradient(const T* dy, int64_t rows, int64_t width, int64_t row_stride,
                             bool accumulate, float* db, float* partials, const Run& run) {
  const int64_t each = BiasRowsPerBlock(rows);
  const bool packs = width % kPack<T> == 0 && row_stride % kPack<T> == 0 &&
                     reinterpret_cast<uintptr_t>(dy) % 16 == 0;
  MP_RETURN_IF_ERROR(
      packs ? run(BiasGradientKernel<T, kPack<T>>{dy, rows, width, row_stride, each, partials})
            : run(BiasGradientKernel<T, 1>{dy, rows, width, row_stride, each, partials}));
  return run(ColumnSumKernel{{partials, accumulate, db}, {}, CeilDiv(rows, each), width});
}

template <int N, typename T, typename Run>
absl::Status RunQkNormBackward(const QkNormShape& s, const QkNormBackwardArgs<T>& a,
                               float* workspace, const Run& run) {
  QkNormBackwardKernel<T, N> kernel = {s, a, workspace, nullptr};
  const int64_t partials = kernel.grid().x * QkNormBackwardKernel<T, N>::kWarps;
  kernel.partial_k = workspace + partials * s.head_dim;
  MP_RETURN_IF_ERROR(run(kernel));
  return run(ColumnSumKernel{{kernel.partial_q, a.accumulate_q, a.dgamma_q},
                             {kernel.partial_k, a.accumulate_k, a.dgamma_k},
                             partials,
                             s.head_dim});
}

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_QK_NORM_QK_NORM_CUDA_KERNEL_INL_H_
