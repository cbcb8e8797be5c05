#include "engine/optim/muon/muon_cpu_kernel.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/status_macros.h"
#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/optim/muon/muon_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "engine/kernels/cpu/sum_squares.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

template <typename T>
void ApplyRange(float shrink, float step, int64_t n, float* p, const float* u, T* copy) {
  const DF d;
  const VF keep = hn::Set(d, shrink), factor = hn::Set(d, step);
  ForVectors(n, [&](int64_t i, int64_t count) MP_SIMD {
    const VF decayed = hn::Mul(LoadUpTo(d, p + i, count), keep);
    const VF new_p = hn::NegMulAdd(factor, LoadUpTo(d, u + i, count), decayed);
    StoreUpTo(new_p, d, p + i, count);
    if (copy != nullptr) StoreUpTo(new_p, d, copy + i, count);
  });
}

}  // namespace

void MuonMomentumRange(const MuonParams& a, int64_t n, float* m, const float* g, float* u) {
  const DF d;
  const VF momentum = hn::Set(d, a.momentum), rest = hn::Set(d, 1.0f - a.momentum);
  const VF scale = hn::Set(d, a.gradient_scale);
  ForVectors(n, [&](int64_t i, int64_t count) MP_SIMD {
    const VF grad = hn::Mul(hn::Mul(LoadUpTo(d, g + i, count), scale), rest);
    const VF new_m = hn::MulAdd(momentum, LoadUpTo(d, m + i, count), grad);
    StoreUpTo(new_m, d, m + i, count);
    StoreUpTo(a.nesterov ? hn::MulAdd(momentum, new_m, grad) : new_m, d, u + i, count);
  });
}

void MuonApplyF32(float shrink, float step, int64_t n, float* p, const float* u, float* copy) {
  ApplyRange(shrink, step, n, p, u, copy);
}
void MuonApplyBf16(float shrink, float step, int64_t n, float* p, const float* u, bf16* copy) {
  ApplyRange(shrink, step, n, p, u, copy);
}
void MuonApplyF16(float shrink, float step, int64_t n, float* p, const float* u, f16* copy) {
  ApplyRange(shrink, step, n, p, u, copy);
}

// y = factor * x; y may be x.
void ScaleRange(float factor, int64_t n, const float* x, float* y) {
  const DF d;
  const VF f = hn::Set(d, factor);
  ForVectors(n, [&](int64_t i, int64_t count)
                    MP_SIMD { StoreUpTo(hn::Mul(f, LoadUpTo(d, x + i, count)), d, y + i, count); });
}

// y = the rounded x / divisor, of x rounded.
void DivideInBf16Range(float divisor, int64_t n, const float* x, bf16* y) {
  const DF d;
  const VF by = hn::Set(d, divisor);
  ForVectors(n, [&](int64_t i, int64_t count) MP_SIMD {
    StoreUpTo(LoadUpTo(d, x + i, count), d, y + i, count);
    StoreUpTo(hn::Div(LoadUpTo(d, y + i, count), by), d, y + i, count);
  });
}

// out = the rounded b * x + c * y; out may be x.
void MixToBf16Range(float b, float c, int64_t n, const bf16* x, const float* y, bf16* out) {
  const DF d;
  const VF vb = hn::Set(d, b), vc = hn::Set(d, c);
  ForVectors(n, [&](int64_t i, int64_t count) MP_SIMD {
    const VF scaled = hn::Mul(vc, LoadUpTo(d, y + i, count));
    StoreUpTo(hn::MulAdd(vb, LoadUpTo(d, x + i, count), scaled), d, out + i, count);
  });
}

// y = b * x + c * y.
void MixRange(float b, float c, int64_t n, const float* x, float* y) {
  const DF d;
  const VF vb = hn::Set(d, b), vc = hn::Set(d, c);
  ForVectors(n, [&](int64_t i, int64_t count) MP_SIMD {
    const VF scaled = hn::Mul(vc, LoadUpTo(d, y + i, count));
    StoreUpTo(hn::MulAdd(vb, LoadUpTo(d, x + i, count), scaled), d, y + i, count);
  });
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(MuonMomentumRange);
HWY_EXPORT(MuonApplyF32);
HWY_EXPORT(MuonApplyBf16);
HWY_EXPORT(MuonApplyF16);
HWY_EXPORT(ScaleRange);
HWY_EXPORT(MixRange);
HWY_EXPORT(DivideInBf16Range);
HWY_EXPORT(MixToBf16Range);

namespace {

constexpr int64_t kGrain = 16384;
constexpr float kA = 3.4445f;
constexpr float kB = -4.7750f;
constexpr float kC = 2.0315f;
constexpr double kLeastNorm = 1e-7;

template <typename Run, typename T>
void Apply(Run run, float shrink, float step, int64_t n, float* p, const float* u, T* copy) {
  ParallelFor(0, n, kGrain, [&](int64_t first, int64_t last) {
    run(shrink, step, last - first, p + first, u + first, copy == nullptr ? nullptr : copy + first);
  });
}

void Scale(float factor, int64_t n, const float* x, float* y) {
  const auto run = HWY_DYNAMIC_DISPATCH(ScaleRange);
  ParallelFor(0, n, kGrain, [&](int64_t first, int64_t last) {
    run(factor, last - first, x + first, y + first);
  });
}

void Mix(float b, float c, int64_t n, const float* x, float* y) {
  const auto run = HWY_DYNAMIC_DISPATCH(MixRange);
  ParallelFor(0, n, kGrain,
              [&](int64_t first, int64_t last) { run(b, c, last - first, x + first, y + first); });
}

void DivideInBf16(float divisor, int64_t n, const float* x, bf16* y) {
  const auto run = HWY_DYNAMIC_DISPATCH(DivideInBf16Range);
  ParallelFor(0, n, kGrain, [&](int64_t first, int64_t last) {
    run(divisor, last - first, x + first, y + first);
  });
}

void MixToBf16(float b, float c, int64_t n, const bf16* x, const float* y, bf16* out) {
  const auto run = HWY_DYNAMIC_DISPATCH(MixToBf16Range);
  ParallelFor(0, n, kGrain, [&](int64_t first, int64_t last) {
    run(b, c, last - first, x + first, y + first, out + first);
  });
}

}  // namespace

void MuonMomentum(const MuonParams& params, int64_t n, float* m, const float* g, float* u) {
  const auto run = HWY_DYNAMIC_DISPATCH(MuonMomentumRange);
  ParallelFor(0, n, kGrain, [&](int64_t first, int64_t last) {
    run(params, last - first, m + first, g + first, u + first);
  });
}

template <>
void MuonApply(float shrink, float step, int64_t n, float* p, const float* u, float* copy) {
  Apply(HWY_DYNAMIC_DISPATCH(MuonApplyF32), shrink, step, n, p, u, copy);
}
template <>
void MuonApply(float shrink, float step, int64_t n, float* p, const float* u, bf16* copy) {
  Apply(HWY_DYNAMIC_DISPATCH(MuonApplyBf16), shrink, step, n, p, u, copy);
}
template <>
void MuonApply(float shrink, float step, int64_t n, float* p, const float* u, f16* copy) {
  Apply(HWY_DYNAMIC_DISPATCH(MuonApplyF16), shrink, step, n, p, u, copy);
}

namespace {

absl::Status IterateInF32(const MuonMatrix& matrix, int64_t steps, MatmulCache& cache, float* x,
                          char* workspace) {
  const MuonProducts products(matrix);
  const OrthogonalizeScratch at(matrix);
  const int64_t n = matrix.elements();
  const int64_t square = products.side * products.side;
  auto* a = reinterpret_cast<float*>(workspace);
  auto* b = reinterpret_cast<float*>(workspace + at.b);
  auto* next = reinterpret_cast<float*>(workspace + at.next);
  char* scratch = workspace + at.bytes;
  float* now = x;
  for (int64_t step = 0; step < steps; ++step) {
    MP_RETURN_IF_ERROR(cache.Execute(products.gram, now, now, nullptr, a, scratch));
    MP_RETURN_IF_ERROR(cache.Execute(products.square, a, a, nullptr, b, scratch));
    Mix(kB, kC, square, a, b);
    Scale(kA, n, now, next);
    const bool tall = matrix.rows > matrix.cols;
    const float* left = tall ? now : b;
    const float* right = tall ? b : now;
    MP_RETURN_IF_ERROR(cache.Execute(products.update, left, right, nullptr, next, scratch));
    std::swap(now, next);
  }
  if (now != x) Scale(1, n, now, x);
  return absl::OkStatus();
}

// x itself is where products with it are summed.
absl::Status IterateInBf16(const MuonMatrix& matrix, int64_t steps, MatmulCache& cache, float* x,
                           char* workspace) {
  const MuonProducts products(matrix);
  const OrthogonalizeScratch at(matrix);
  const int64_t n = matrix.elements();
  const int64_t square = products.side * products.side;
  auto* a = reinterpret_cast<bf16*>(workspace);
  auto* b = reinterpret_cast<bf16*>(workspace + at.b);
  auto* now = reinterpret_cast<bf16*>(workspace + at.next);
  auto* sums = reinterpret_cast<float*>(workspace + at.sums);
  char* scratch = workspace + at.bytes;
  for (int64_t step = 0; step < steps; ++step) {
    MP_RETURN_IF_ERROR(cache.Execute(products.gram, now, now, nullptr, sums, scratch));
    CastToBf16(sums, square, a);
    MP_RETURN_IF_ERROR(cache.Execute(products.square, a, a, nullptr, sums, scratch));
    MixToBf16(kB, kC, square, a, sums, b);
    const bool tall = matrix.rows > matrix.cols;
    const bf16* left = tall ? now : b;
    const bf16* right = tall ? b : now;
    MP_RETURN_IF_ERROR(cache.Execute(products.update, left, right, nullptr, x, scratch));
    MixToBf16(kA, 1, n, now, x, now);
  }
  CastToFloat(now, n, x);
  return absl::OkStatus();
}

}  // namespace

absl::Status Orthogonalize(const MuonMatrix& matrix, int64_t steps, MatmulCache& cache, float* x,
                           char* workspace) {
  const int64_t n = matrix.elements();
  char* next = workspace + OrthogonalizeScratch(matrix).next;
  const double norm = std::sqrt(SumSquares(x, n, next));
  if (matrix.dtype == DType::kF32) {
    Scale(static_cast<float>(1 / std::max(norm, kLeastNorm)), n, x, x);
    return IterateInF32(matrix, steps, cache, x, workspace);
  }
  const float rounded = ToFloat(ToBf16(static_cast<float>(norm)));
  DivideInBf16(std::max(rounded, static_cast<float>(kLeastNorm)), n, x,
               reinterpret_cast<bf16*>(next));
  return IterateInBf16(matrix, steps, cache, x, workspace);
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
