#include "engine/ops/norm/rmsnorm_cpu_kernel.h"

#include <algorithm>
#include <cmath>

#include "engine/kernels/cpu/column_sum.h"
#include "engine/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ops/norm/rmsnorm_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

// Four running sums: a multiply-add has a latency of several cycles.
template <typename T>
HWY_INLINE float SumOfSquares(const T* x, int64_t n) {
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  VF sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const VF a = LoadF(d, x + i), b = LoadF(d, x + i + lanes);
    const VF c = LoadF(d, x + i + 2 * lanes), e = LoadF(d, x + i + 3 * lanes);
    sum0 = hn::MulAdd(a, a, sum0);
    sum1 = hn::MulAdd(b, b, sum1);
    sum2 = hn::MulAdd(c, c, sum2);
    sum3 = hn::MulAdd(e, e, sum3);
  }
  for (; i < n; i += lanes) {
    const VF a = LoadUpTo(d, x + i, std::min(lanes, n - i));
    sum0 = hn::MulAdd(a, a, sum0);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
}

template <typename T>
HWY_INLINE void NormaliseRow(const RmsNormShape& s, const T* x, const T* gamma, T* y,
                             float* rstd_out) {
  const DF d;
  const float squares = SumOfSquares(x, s.width);
  const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(s.width) + s.epsilon);
  const VF vrstd = hn::Set(d, rstd), offset = hn::Set(d, s.gamma_offset);
  ForVectors(s.width, [&](int64_t i, int64_t n) MP_SIMD {
    const VF normal = hn::Mul(LoadUpTo(d, x + i, n), vrstd);
    StoreUpTo(hn::Mul(normal, hn::Add(LoadUpTo(d, gamma + i, n), offset)), d, y + i, n);
  });
  *rstd_out = rstd;
}

// `residual` null: x is the input itself; else x is where their sum goes.
template <typename T>
void ForwardRows(const RmsNormShape& s, const T* residual, const T* delta, const T* gamma,
                 int64_t first, int64_t last, T* x, T* y, float* rstd) {
  const DF d;
  for (int64_t row = first; row < last; ++row) {
    const int64_t at = row * s.RowStride();
    if (residual != nullptr) {
      ForVectors(s.width, [&](int64_t i, int64_t n) MP_SIMD {
        const VF sum = hn::Add(LoadUpTo(d, residual + at + i, n), LoadUpTo(d, delta + at + i, n));
        StoreUpTo(sum, d, x + at + i, n);
      });
    }
    NormaliseRow(s, x + at, gamma, y + at, rstd + row);
  }
}

// With xhat = x rstd and g = dy (gamma_offset + gamma): dx = rstd (g - xhat mean(g xhat));
// dgamma += dy xhat.
template <typename T>
HWY_INLINE void BackwardRow(const RmsNormShape& s, const RmsNormBackwardArgs<T>& a, int64_t row,
                            float* dgamma) {
  const DF d;
  const int64_t width = s.width;
  const VF offset = hn::Set(d, s.gamma_offset);
  const int64_t at = row * s.RowStride();
  const T* dy = a.dy + at;
  const T* x = a.x + at;
  const VF rstd = hn::Set(d, a.rstd[row]);
  VF sum = hn::Zero(d);
  ForVectors(width, [&](int64_t i, int64_t n) MP_SIMD {
    const VF gradient = LoadUpTo(d, dy + i, n);  // lanes from n on are 0, and so is all they feed
    const VF product = hn::Mul(gradient, hn::Mul(LoadUpTo(d, x + i, n), rstd));
    sum = hn::MulAdd(product, hn::Add(LoadUpTo(d, a.gamma + i, n), offset), sum);
    StoreUpTo(hn::Add(product, LoadUpTo(d, dgamma + i, n)), d, dgamma + i, n);
  });
  const float scale = 1.0f / static_cast<float>(width);
  const VF mean = hn::Set(d, hn::GetLane(hn::SumOfLanes(d, sum)) * scale);
  const T* upstream = a.dx_upstream == nullptr ? nullptr : a.dx_upstream + at;
  T* dx = a.dx + at;
  ForVectors(width, [&](int64_t i, int64_t n) MP_SIMD {
    const VF xhat = hn::Mul(LoadUpTo(d, x + i, n), rstd);
    const VF gamma = hn::Add(LoadUpTo(d, a.gamma + i, n), offset);
    const VF g = hn::Mul(LoadUpTo(d, dy + i, n), gamma);
    VF out = hn::Mul(rstd, hn::NegMulAdd(xhat, mean, g));
    if (upstream != nullptr) out = hn::Add(out, LoadUpTo(d, upstream + i, n));
    StoreUpTo(out, d, dx + i, n);
  });
}

template <typename T>
void BackwardRows(const RmsNormShape& s, const RmsNormBackwardArgs<T>& a, int64_t first,
                  int64_t last, float* dgamma) {
  std::fill(dgamma, dgamma + s.width, 0.0f);
  for (int64_t row = first; row < last; ++row) BackwardRow(s, a, row, dgamma);
}

}  // namespace

void RmsForwardRowsF32(const RmsNormShape& shape, const float* residual, const float* delta,
                       const float* gamma, int64_t first, int64_t last, float* x, float* y,
                       float* rstd) {
  ForwardRows(shape, residual, delta, gamma, first, last, x, y, rstd);
}
void RmsForwardRowsBf16(const RmsNormShape& shape, const bf16* residual, const bf16* delta,
                        const bf16* gamma, int64_t first, int64_t last, bf16* x, bf16* y,
                        float* rstd) {
  ForwardRows(shape, residual, delta, gamma, first, last, x, y, rstd);
}
void RmsForwardRowsF16(const RmsNormShape& shape, const f16* residual, const f16* delta,
                       const f16* gamma, int64_t first, int64_t last, f16* x, f16* y, float* rstd) {
  ForwardRows(shape, residual, delta, gamma, first, last, x, y, rstd);
}
void RmsBackwardRowsF32(const RmsNormShape& shape, const RmsNormBackwardArgs<float>& args,
                        int64_t first, int64_t last, float* dgamma) {
  BackwardRows(shape, args, first, last, dgamma);
}
void RmsBackwardRowsBf16(const RmsNormShape& shape, const RmsNormBackwardArgs<bf16>& args,
                         int64_t first, int64_t last, float* dgamma) {
  BackwardRows(shape, args, first, last, dgamma);
}
void RmsBackwardRowsF16(const RmsNormShape& shape, const RmsNormBackwardArgs<f16>& args,
                        int64_t first, int64_t last, float* dgamma) {
  BackwardRows(shape, args, first, last, dgamma);
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(RmsForwardRowsF32);
HWY_EXPORT(RmsForwardRowsBf16);
HWY_EXPORT(RmsForwardRowsF16);
HWY_EXPORT(RmsBackwardRowsF32);
HWY_EXPORT(RmsBackwardRowsBf16);
HWY_EXPORT(RmsBackwardRowsF16);

namespace {

template <typename T, typename Rows>
void ForwardWith(Rows forward_rows, const RmsNormShape& shape, const T* residual, const T* delta,
                 const T* gamma, T* x, T* y, float* rstd) {
  // Rows per thread at least: below this a fork costs more than it saves.
  const int64_t grain = std::max<int64_t>(1, 8192 / shape.width);
  ParallelFor(0, shape.rows, grain, [&](int64_t first, int64_t last) {
    forward_rows(shape, residual, delta, gamma, first, last, x, y, rstd);
  });
}

template <typename T, typename Rows>
void BackwardWith(Rows backward_rows, const RmsNormShape& shape, const RmsNormBackwardArgs<T>& args,
                  void* workspace) {
  const RowBlocks blocks(shape.rows);
  const int64_t stride = PartialStride(shape.width);
  float* dgamma = static_cast<float*>(workspace);
  ParallelTasks(blocks.count, [&](int64_t block, int) {
    backward_rows(shape, args, blocks.First(block), blocks.Last(block), dgamma + block * stride);
  });
  AddPartials(dgamma, blocks.count, stride, shape.width, args.accumulate, args.dgamma);
}

}  // namespace

template <>
void RmsNormForward(const RmsNormShape& shape, const float* x, const float* gamma, float* y,
                    float* rstd) {
  ForwardWith<float>(HWY_DYNAMIC_DISPATCH(RmsForwardRowsF32), shape, nullptr, nullptr, gamma,
                     const_cast<float*>(x), y, rstd);  // x is only read
}
template <>
void RmsNormForward(const RmsNormShape& shape, const bf16* x, const bf16* gamma, bf16* y,
                    float* rstd) {
  ForwardWith<bf16>(HWY_DYNAMIC_DISPATCH(RmsForwardRowsBf16), shape, nullptr, nullptr, gamma,
                    const_cast<bf16*>(x), y, rstd);  // x is only read
}
template <>
void RmsNormForward(const RmsNormShape& shape, const f16* x, const f16* gamma, f16* y,
                    float* rstd) {
  ForwardWith<f16>(HWY_DYNAMIC_DISPATCH(RmsForwardRowsF16), shape, nullptr, nullptr, gamma,
                   const_cast<f16*>(x), y, rstd);  // x is only read
}

template <>
void ResidualRmsNormForward(const RmsNormShape& shape, const float* residual, const float* delta,
                            const float* gamma, float* sum, float* y, float* rstd) {
  ForwardWith(HWY_DYNAMIC_DISPATCH(RmsForwardRowsF32), shape, residual, delta, gamma, sum, y, rstd);
}
template <>
void ResidualRmsNormForward(const RmsNormShape& shape, const bf16* residual, const bf16* delta,
                            const bf16* gamma, bf16* sum, bf16* y, float* rstd) {
  ForwardWith(HWY_DYNAMIC_DISPATCH(RmsForwardRowsBf16), shape, residual, delta, gamma, sum, y,
              rstd);
}
template <>
void ResidualRmsNormForward(const RmsNormShape& shape, const f16* residual, const f16* delta,
                            const f16* gamma, f16* sum, f16* y, float* rstd) {
  ForwardWith(HWY_DYNAMIC_DISPATCH(RmsForwardRowsF16), shape, residual, delta, gamma, sum, y, rstd);
}

template <>
void RmsNormBackward(const RmsNormShape& shape, const RmsNormBackwardArgs<float>& args,
                     void* workspace) {
  BackwardWith(HWY_DYNAMIC_DISPATCH(RmsBackwardRowsF32), shape, args, workspace);
}
template <>
void RmsNormBackward(const RmsNormShape& shape, const RmsNormBackwardArgs<bf16>& args,
                     void* workspace) {
  BackwardWith(HWY_DYNAMIC_DISPATCH(RmsBackwardRowsBf16), shape, args, workspace);
}
template <>
void RmsNormBackward(const RmsNormShape& shape, const RmsNormBackwardArgs<f16>& args,
                     void* workspace) {
  BackwardWith(HWY_DYNAMIC_DISPATCH(RmsBackwardRowsF16), shape, args, workspace);
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
