#include "engine/ops/norm/layernorm_cpu_kernel.h"

#include <algorithm>
#include <cmath>

#include "engine/kernels/cpu/column_sum.h"
#include "engine/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ops/norm/layernorm_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

constexpr int64_t kDropoutChunk = 256;  // multipliers computed at a time, on the stack

// Four running sums: an add has a latency of several cycles.
template <typename Term>
HWY_INLINE float SumTerms(int64_t n, const Term& term) {
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  VF sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    sum0 = hn::Add(sum0, term(i, lanes));
    sum1 = hn::Add(sum1, term(i + lanes, lanes));
    sum2 = hn::Add(sum2, term(i + 2 * lanes, lanes));
    sum3 = hn::Add(sum3, term(i + 3 * lanes, lanes));
  }
  for (; i + lanes <= n; i += lanes) sum0 = hn::Add(sum0, term(i, lanes));
  if (i < n) sum1 = hn::Add(sum1, term(i, n - i));
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
}

// A vector whose lanes from n on are 0.
HWY_INLINE VF KeepFirst(DF d, VF v, int64_t n) {
  if (n == static_cast<int64_t>(hn::Lanes(d))) return v;
  return hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(n)), v);
}

template <typename T>
HWY_INLINE void NormaliseRow(const T* x, const T* gamma, const T* beta, int64_t width,
                             float epsilon, T* y, float* mean_out, float* rstd_out) {
  const DF d;
  const float mean =
      SumTerms(width, [&](int64_t i, int64_t n) MP_SIMD { return LoadUpTo(d, x + i, n); }) /
      static_cast<float>(width);
  const VF vmean = hn::Set(d, mean);
  const float variance = SumTerms(width,
                                  [&](int64_t i, int64_t n) MP_SIMD {
                                    const VF c =
                                        KeepFirst(d, hn::Sub(LoadUpTo(d, x + i, n), vmean), n);
                                    return hn::Mul(c, c);
                                  }) /
                         static_cast<float>(width);
  const float rstd = 1.0f / std::sqrt(variance + epsilon);
  const VF vrstd = hn::Set(d, rstd);
  ForVectors(width, [&](int64_t i, int64_t n) MP_SIMD {
    const VF normal = hn::Mul(hn::Sub(LoadUpTo(d, x + i, n), vmean), vrstd);
    const VF out = hn::MulAdd(normal, LoadUpTo(d, gamma + i, n), LoadUpTo(d, beta + i, n));
    StoreUpTo(out, d, y + i, n);
  });
  *mean_out = mean;
  *rstd_out = rstd;
}

template <typename T>
HWY_INLINE void AddResidualRow(const T* residual, const T* delta, int64_t width, T* out) {
  const DF d;
  ForVectors(width, [&](int64_t i, int64_t n) MP_SIMD {
    StoreUpTo(hn::Add(LoadUpTo(d, residual + i, n), LoadUpTo(d, delta + i, n)), d, out + i, n);
  });
}

template <typename T>
void AddDroppedRow(const T* residual, const T* delta, const DropoutParams& dropout, int64_t row,
                   int64_t width, T* out) {
  const DF d;
  alignas(64) float keep[kDropoutChunk];
  for (int64_t at = 0; at < width; at += kDropoutChunk) {
    const int64_t count = std::min(kDropoutChunk, width - at);
    DropoutRow(dropout, static_cast<uint64_t>(row * width + at), count, keep);
    ForVectors(count, [&](int64_t i, int64_t n) MP_SIMD {
      const VF kept = hn::Mul(LoadUpTo(d, delta + at + i, n), LoadUpTo(d, keep + i, n));
      StoreUpTo(hn::Add(LoadUpTo(d, residual + at + i, n), kept), d, out + at + i, n);
    });
  }
}

template <typename T>
void ForwardRows(const T* x, const T* gamma, const T* beta, int64_t first, int64_t last,
                 int64_t width, float epsilon, T* y, float* mean, float* rstd) {
  for (int64_t row = first; row < last; ++row) {
    NormaliseRow(x + row * width, gamma, beta, width, epsilon, y + row * width, mean + row,
                 rstd + row);
  }
}

template <typename T>
void ResidualForwardRows(const T* residual, const T* delta, const DropoutParams& dropout,
                         const T* gamma, const T* beta, int64_t first, int64_t last, int64_t width,
                         float epsilon, T* x_out, T* y, float* mean, float* rstd) {
  for (int64_t row = first; row < last; ++row) {
    const int64_t at = row * width;
    if (dropout.p > 0.0f) {
      AddDroppedRow(residual + at, delta + at, dropout, row, width, x_out + at);
    } else {
      AddResidualRow(residual + at, delta + at, width, x_out + at);
    }
    NormaliseRow(x_out + at, gamma, beta, width, epsilon, y + at, mean + row, rstd + row);
  }
}

// With xhat = (x - mean) rstd and g = dy gamma:
// dx = rstd (g - mean(g) - xhat mean(g xhat)); dgamma += dy xhat; dbeta += dy.
template <typename T>
HWY_INLINE void BackwardRow(const LayerNormBackwardArgs<T>& a, int64_t row, int64_t width,
                            float* dgamma, float* dbeta) {
  const DF d;
  const T* dy = a.dy + row * width;
  const T* x = a.x + row * width;
  const VF mean = hn::Set(d, a.mean[row]);
  const VF rstd = hn::Set(d, a.rstd[row]);
  VF sum_g = hn::Zero(d), sum_gx = hn::Zero(d);
  ForVectors(width, [&](int64_t i, int64_t n) MP_SIMD {
    const VF gradient = LoadUpTo(d, dy + i, n);  // lanes from n on are 0, and so is all they feed
    const VF xhat = hn::Mul(hn::Sub(LoadUpTo(d, x + i, n), mean), rstd);
    const VF g = hn::Mul(gradient, LoadUpTo(d, a.gamma + i, n));
    sum_g = hn::Add(sum_g, g);
    sum_gx = hn::MulAdd(g, xhat, sum_gx);
    StoreUpTo(hn::MulAdd(gradient, xhat, LoadUpTo(d, dgamma + i, n)), d, dgamma + i, n);
    StoreUpTo(hn::Add(gradient, LoadUpTo(d, dbeta + i, n)), d, dbeta + i, n);
  });
  const float scale = 1.0f / static_cast<float>(width);
  const VF mean_g = hn::Set(d, hn::GetLane(hn::SumOfLanes(d, sum_g)) * scale);
  const VF mean_gx = hn::Set(d, hn::GetLane(hn::SumOfLanes(d, sum_gx)) * scale);
  const T* upstream = a.dx_upstream == nullptr ? nullptr : a.dx_upstream + row * width;
  T* dx = a.dx + row * width;
  ForVectors(width, [&](int64_t i, int64_t n) MP_SIMD {
    const VF xhat = hn::Mul(hn::Sub(LoadUpTo(d, x + i, n), mean), rstd);
    const VF g = hn::Mul(LoadUpTo(d, dy + i, n), LoadUpTo(d, a.gamma + i, n));
    VF out = hn::Mul(rstd, hn::NegMulAdd(xhat, mean_gx, hn::Sub(g, mean_g)));
    if (upstream != nullptr) out = hn::Add(out, LoadUpTo(d, upstream + i, n));
    StoreUpTo(out, d, dx + i, n);
  });
}

// d_delta = mask * dx, from dx as stored.
template <typename T>
void DropRow(const T* dx, const DropoutParams& dropout, int64_t row, int64_t width, T* d_delta) {
  const DF d;
  alignas(64) float keep[kDropoutChunk];
  for (int64_t at = 0; at < width; at += kDropoutChunk) {
    const int64_t count = std::min(kDropoutChunk, width - at);
    if (dropout.p > 0.0f) {
      DropoutRow(dropout, static_cast<uint64_t>(row * width + at), count, keep);
    } else {
      std::fill(keep, keep + count, 1.0f);
    }
    ForVectors(count, [&](int64_t i, int64_t n) MP_SIMD {
      const VF kept = hn::Mul(LoadUpTo(d, dx + at + i, n), LoadUpTo(d, keep + i, n));
      StoreUpTo(kept, d, d_delta + at + i, n);
    });
  }
}

template <typename T>
void BackwardRows(const LayerNormBackwardArgs<T>& a, int64_t first, int64_t last, int64_t width,
                  float* dgamma, float* dbeta) {
  std::fill(dgamma, dgamma + width, 0.0f);
  std::fill(dbeta, dbeta + width, 0.0f);
  for (int64_t row = first; row < last; ++row) {
    BackwardRow(a, row, width, dgamma, dbeta);
    if (a.d_delta != nullptr) {
      DropRow(a.dx + row * width, a.dropout, row, width, a.d_delta + row * width);
    }
  }
}

}  // namespace

void ForwardRowsF32(const float* x, const float* gamma, const float* beta, int64_t first,
                    int64_t last, int64_t width, float epsilon, float* y, float* mean,
                    float* rstd) {
  ForwardRows(x, gamma, beta, first, last, width, epsilon, y, mean, rstd);
}
void ForwardRowsBf16(const bf16* x, const bf16* gamma, const bf16* beta, int64_t first,
                     int64_t last, int64_t width, float epsilon, bf16* y, float* mean,
                     float* rstd) {
  ForwardRows(x, gamma, beta, first, last, width, epsilon, y, mean, rstd);
}
void ForwardRowsF16(const f16* x, const f16* gamma, const f16* beta, int64_t first, int64_t last,
                    int64_t width, float epsilon, f16* y, float* mean, float* rstd) {
  ForwardRows(x, gamma, beta, first, last, width, epsilon, y, mean, rstd);
}
void ResidualForwardRowsF32(const float* residual, const float* delta, const DropoutParams& dropout,
                            const float* gamma, const float* beta, int64_t first, int64_t last,
                            int64_t width, float epsilon, float* x_out, float* y, float* mean,
                            float* rstd) {
  ResidualForwardRows(residual, delta, dropout, gamma, beta, first, last, width, epsilon, x_out, y,
                      mean, rstd);
}
void ResidualForwardRowsBf16(const bf16* residual, const bf16* delta, const DropoutParams& dropout,
                             const bf16* gamma, const bf16* beta, int64_t first, int64_t last,
                             int64_t width, float epsilon, bf16* x_out, bf16* y, float* mean,
                             float* rstd) {
  ResidualForwardRows(residual, delta, dropout, gamma, beta, first, last, width, epsilon, x_out, y,
                      mean, rstd);
}
void ResidualForwardRowsF16(const f16* residual, const f16* delta, const DropoutParams& dropout,
                            const f16* gamma, const f16* beta, int64_t first, int64_t last,
                            int64_t width, float epsilon, f16* x_out, f16* y, float* mean,
                            float* rstd) {
  ResidualForwardRows(residual, delta, dropout, gamma, beta, first, last, width, epsilon, x_out, y,
                      mean, rstd);
}
void BackwardRowsF32(const LayerNormBackwardArgs<float>& args, int64_t first, int64_t last,
                     int64_t width, float* dgamma, float* dbeta) {
  BackwardRows(args, first, last, width, dgamma, dbeta);
}
void BackwardRowsBf16(const LayerNormBackwardArgs<bf16>& args, int64_t first, int64_t last,
                      int64_t width, float* dgamma, float* dbeta) {
  BackwardRows(args, first, last, width, dgamma, dbeta);
}
void BackwardRowsF16(const LayerNormBackwardArgs<f16>& args, int64_t first, int64_t last,
                     int64_t width, float* dgamma, float* dbeta) {
  BackwardRows(args, first, last, width, dgamma, dbeta);
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(ForwardRowsF32);
HWY_EXPORT(ForwardRowsBf16);
HWY_EXPORT(ForwardRowsF16);
HWY_EXPORT(ResidualForwardRowsF32);
HWY_EXPORT(ResidualForwardRowsBf16);
HWY_EXPORT(ResidualForwardRowsF16);
HWY_EXPORT(BackwardRowsF32);
HWY_EXPORT(BackwardRowsBf16);
HWY_EXPORT(BackwardRowsF16);

namespace {

// Rows per thread at least: below this a fork costs more than it saves.
int64_t RowGrain(int64_t width) { return std::max<int64_t>(1, 8192 / width); }

template <typename T, typename Rows>
void BackwardWith(Rows backward_rows, const LayerNormBackwardArgs<T>& args, int64_t rows,
                  int64_t width, void* workspace) {
  const RowBlocks blocks(rows);
  const int64_t stride = PartialStride(width);
  float* dgamma = static_cast<float*>(workspace);
  float* dbeta = dgamma + blocks.count * stride;
  ParallelTasks(blocks.count, [&](int64_t block, int) {
    backward_rows(args, blocks.First(block), blocks.Last(block), width, dgamma + block * stride,
                  dbeta + block * stride);
  });
  AddPartials(dgamma, blocks.count, stride, width, args.accumulate, args.dgamma);
  AddPartials(dbeta, blocks.count, stride, width, args.accumulate, args.dbeta);
}

}  // namespace

template <>
void LayerNormForward(const float* x, const float* gamma, const float* beta, int64_t rows,
                      int64_t width, float epsilon, float* y, float* mean, float* rstd) {
  const auto run = HWY_DYNAMIC_DISPATCH(ForwardRowsF32);
  ParallelFor(0, rows, RowGrain(width), [&](int64_t first, int64_t last) {
    run(x, gamma, beta, first, last, width, epsilon, y, mean, rstd);
  });
}
template <>
void LayerNormForward(const bf16* x, const bf16* gamma, const bf16* beta, int64_t rows,
                      int64_t width, float epsilon, bf16* y, float* mean, float* rstd) {
  const auto run = HWY_DYNAMIC_DISPATCH(ForwardRowsBf16);
  ParallelFor(0, rows, RowGrain(width), [&](int64_t first, int64_t last) {
    run(x, gamma, beta, first, last, width, epsilon, y, mean, rstd);
  });
}
template <>
void LayerNormForward(const f16* x, const f16* gamma, const f16* beta, int64_t rows, int64_t width,
                      float epsilon, f16* y, float* mean, float* rstd) {
  const auto run = HWY_DYNAMIC_DISPATCH(ForwardRowsF16);
  ParallelFor(0, rows, RowGrain(width), [&](int64_t first, int64_t last) {
    run(x, gamma, beta, first, last, width, epsilon, y, mean, rstd);
  });
}

template <>
void ResidualLayerNormForward(const float* residual, const float* delta,
                              const DropoutParams& dropout, const float* gamma, const float* beta,
                              int64_t rows, int64_t width, float epsilon, float* x_out, float* y,
                              float* mean, float* rstd) {
  const auto run = HWY_DYNAMIC_DISPATCH(ResidualForwardRowsF32);
  ParallelFor(0, rows, RowGrain(width), [&](int64_t first, int64_t last) {
    run(residual, delta, dropout, gamma, beta, first, last, width, epsilon, x_out, y, mean, rstd);
  });
}
template <>
void ResidualLayerNormForward(const bf16* residual, const bf16* delta, const DropoutParams& dropout,
                              const bf16* gamma, const bf16* beta, int64_t rows, int64_t width,
                              float epsilon, bf16* x_out, bf16* y, float* mean, float* rstd) {
  const auto run = HWY_DYNAMIC_DISPATCH(ResidualForwardRowsBf16);
  ParallelFor(0, rows, RowGrain(width), [&](int64_t first, int64_t last) {
    run(residual, delta, dropout, gamma, beta, first, last, width, epsilon, x_out, y, mean, rstd);
  });
}
template <>
void ResidualLayerNormForward(const f16* residual, const f16* delta, const DropoutParams& dropout,
                              const f16* gamma, const f16* beta, int64_t rows, int64_t width,
                              float epsilon, f16* x_out, f16* y, float* mean, float* rstd) {
  const auto run = HWY_DYNAMIC_DISPATCH(ResidualForwardRowsF16);
  ParallelFor(0, rows, RowGrain(width), [&](int64_t first, int64_t last) {
    run(residual, delta, dropout, gamma, beta, first, last, width, epsilon, x_out, y, mean, rstd);
  });
}

template <>
void LayerNormBackward(const LayerNormBackwardArgs<float>& args, int64_t rows, int64_t width,
                       void* workspace) {
  BackwardWith(HWY_DYNAMIC_DISPATCH(BackwardRowsF32), args, rows, width, workspace);
}
template <>
void LayerNormBackward(const LayerNormBackwardArgs<bf16>& args, int64_t rows, int64_t width,
                       void* workspace) {
  BackwardWith(HWY_DYNAMIC_DISPATCH(BackwardRowsBf16), args, rows, width, workspace);
}
template <>
void LayerNormBackward(const LayerNormBackwardArgs<f16>& args, int64_t rows, int64_t width,
                       void* workspace) {
  BackwardWith(HWY_DYNAMIC_DISPATCH(BackwardRowsF16), args, rows, width, workspace);
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
