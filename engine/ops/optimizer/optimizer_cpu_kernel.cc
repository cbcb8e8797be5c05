#include "engine/ops/optimizer/optimizer_cpu_kernel.h"

#include <algorithm>
#include <cmath>

#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ops/optimizer/optimizer_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

template <typename T>
void AdamWRange(const AdamWParams& a, int64_t n, float* p, float* m, float* v, const float* g,
                T* copy) {
  const DF d;
  const double correction1 = 1.0 - std::pow(double{a.beta1}, static_cast<double>(a.step));
  const double correction2 = 1.0 - std::pow(double{a.beta2}, static_cast<double>(a.step));
  const VF beta1 = hn::Set(d, a.beta1), rest1 = hn::Set(d, 1.0f - a.beta1);
  const VF beta2 = hn::Set(d, a.beta2), rest2 = hn::Set(d, 1.0f - a.beta2);
  const VF root2 = hn::Set(d, static_cast<float>(1.0 / std::sqrt(correction2)));
  const VF step = hn::Set(d, static_cast<float>(a.learning_rate / correction1));
  const VF shrink = hn::Set(d, static_cast<float>(1.0 - double{a.learning_rate} * a.weight_decay));
  const VF scale = hn::Set(d, a.gradient_scale), epsilon = hn::Set(d, a.epsilon);
  ForVectors(n, [&](int64_t i, int64_t count) MP_SIMD {
    const VF grad = hn::Mul(LoadUpTo(d, g + i, count), scale);
    const VF new_m = hn::MulAdd(beta1, LoadUpTo(d, m + i, count), hn::Mul(rest1, grad));
    const VF new_v =
        hn::MulAdd(beta2, LoadUpTo(d, v + i, count), hn::Mul(rest2, hn::Mul(grad, grad)));
    const VF denominator = hn::MulAdd(hn::Sqrt(new_v), root2, epsilon);
    const VF decayed = hn::Mul(LoadUpTo(d, p + i, count), shrink);
    const VF new_p = hn::NegMulAdd(step, hn::Div(new_m, denominator), decayed);
    StoreUpTo(new_m, d, m + i, count);
    StoreUpTo(new_v, d, v + i, count);
    StoreUpTo(new_p, d, p + i, count);
    if (copy != nullptr) StoreUpTo(new_p, d, copy + i, count);
  });
}

template <typename T>
void SgdRange(const SgdParams& a, int64_t n, float* p, float* m, const float* g, T* copy) {
  const DF d;
  const VF momentum = hn::Set(d, a.momentum), decay = hn::Set(d, a.weight_decay);
  const VF scale = hn::Set(d, a.gradient_scale), step = hn::Set(d, a.learning_rate);
  ForVectors(n, [&](int64_t i, int64_t count) MP_SIMD {
    const VF old_p = LoadUpTo(d, p + i, count);
    const VF grad = hn::MulAdd(decay, old_p, hn::Mul(LoadUpTo(d, g + i, count), scale));
    const VF new_m = hn::MulAdd(momentum, LoadUpTo(d, m + i, count), grad);
    const VF new_p = hn::NegMulAdd(step, new_m, old_p);
    StoreUpTo(new_m, d, m + i, count);
    StoreUpTo(new_p, d, p + i, count);
    if (copy != nullptr) StoreUpTo(new_p, d, copy + i, count);
  });
}

template <typename T>
void LionRange(const LionParams& a, int64_t n, float* p, float* m, const float* g, T* copy) {
  const DF d;
  const VF beta1 = hn::Set(d, a.beta1), rest1 = hn::Set(d, 1.0f - a.beta1);
  const VF beta2 = hn::Set(d, a.beta2), rest2 = hn::Set(d, 1.0f - a.beta2);
  const VF scale = hn::Set(d, a.gradient_scale), step = hn::Set(d, a.learning_rate);
  const VF shrink = hn::Set(d, static_cast<float>(1.0 - double{a.learning_rate} * a.weight_decay));
  const VF zero = hn::Zero(d);
  ForVectors(n, [&](int64_t i, int64_t count) MP_SIMD {
    const VF grad = hn::Mul(LoadUpTo(d, g + i, count), scale);
    const VF old_m = LoadUpTo(d, m + i, count);
    const VF mixed = hn::MulAdd(beta1, old_m, hn::Mul(rest1, grad));
    const VF signed_step = hn::IfThenElse(hn::Eq(mixed, zero), zero, hn::CopySign(step, mixed));
    const VF new_p = hn::Sub(hn::Mul(LoadUpTo(d, p + i, count), shrink), signed_step);
    StoreUpTo(hn::MulAdd(beta2, old_m, hn::Mul(rest2, grad)), d, m + i, count);
    StoreUpTo(new_p, d, p + i, count);
    if (copy != nullptr) StoreUpTo(new_p, d, copy + i, count);
  });
}

}  // namespace

void SgdRangeF32(const SgdParams& params, int64_t n, float* p, float* m, const float* g,
                 float* copy) {
  SgdRange(params, n, p, m, g, copy);
}
void SgdRangeBf16(const SgdParams& params, int64_t n, float* p, float* m, const float* g,
                  bf16* copy) {
  SgdRange(params, n, p, m, g, copy);
}
void SgdRangeF16(const SgdParams& params, int64_t n, float* p, float* m, const float* g,
                 f16* copy) {
  SgdRange(params, n, p, m, g, copy);
}
void LionRangeF32(const LionParams& params, int64_t n, float* p, float* m, const float* g,
                  float* copy) {
  LionRange(params, n, p, m, g, copy);
}
void LionRangeBf16(const LionParams& params, int64_t n, float* p, float* m, const float* g,
                   bf16* copy) {
  LionRange(params, n, p, m, g, copy);
}
void LionRangeF16(const LionParams& params, int64_t n, float* p, float* m, const float* g,
                  f16* copy) {
  LionRange(params, n, p, m, g, copy);
}

void AdamWRangeF32(const AdamWParams& params, int64_t n, float* p, float* m, float* v,
                   const float* g, float* copy) {
  AdamWRange(params, n, p, m, v, g, copy);
}
void AdamWRangeBf16(const AdamWParams& params, int64_t n, float* p, float* m, float* v,
                    const float* g, bf16* copy) {
  AdamWRange(params, n, p, m, v, g, copy);
}
void AdamWRangeF16(const AdamWParams& params, int64_t n, float* p, float* m, float* v,
                   const float* g, f16* copy) {
  AdamWRange(params, n, p, m, v, g, copy);
}

double SumSquaresBlock(const float* g, int64_t n) {
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> df;
  const int64_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d), sum1 = sum0;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto a = hn::PromoteTo(d, hn::LoadU(df, g + i));
    const auto b = hn::PromoteTo(d, hn::LoadU(df, g + i + lanes));
    sum0 = hn::MulAdd(a, a, sum0);
    sum1 = hn::MulAdd(b, b, sum1);
  }
  double sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
  for (; i < n; ++i) sum += double{g[i]} * g[i];
  return sum;
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(AdamWRangeF32);
HWY_EXPORT(AdamWRangeBf16);
HWY_EXPORT(AdamWRangeF16);
HWY_EXPORT(SgdRangeF32);
HWY_EXPORT(SgdRangeBf16);
HWY_EXPORT(SgdRangeF16);
HWY_EXPORT(LionRangeF32);
HWY_EXPORT(LionRangeBf16);
HWY_EXPORT(LionRangeF16);
HWY_EXPORT(SumSquaresBlock);

namespace {
constexpr int64_t kGrain = 16384;

// AdamW.
template <typename Run, typename T>
void RunRanges(Run run, const AdamWParams& params, int64_t n, float* p, float* m, float* v,
               const float* g, T* copy) {
  ParallelFor(0, n, kGrain, [&](int64_t first, int64_t last) {
    run(params, last - first, p + first, m + first, v + first, g + first,
        copy == nullptr ? nullptr : copy + first);
  });
}
// One state tensor: SGD and Lion.
template <typename Run, typename Params, typename T>
void RunRanges(Run run, const Params& params, int64_t n, float* p, float* m, const float* g,
               T* copy) {
  ParallelFor(0, n, kGrain, [&](int64_t first, int64_t last) {
    run(params, last - first, p + first, m + first, g + first,
        copy == nullptr ? nullptr : copy + first);
  });
}
}  // namespace

template <>
void Sgd(const SgdParams& params, int64_t n, float* p, float* m, const float* g, float* copy) {
  RunRanges(HWY_DYNAMIC_DISPATCH(SgdRangeF32), params, n, p, m, g, copy);
}
template <>
void Sgd(const SgdParams& params, int64_t n, float* p, float* m, const float* g, bf16* copy) {
  RunRanges(HWY_DYNAMIC_DISPATCH(SgdRangeBf16), params, n, p, m, g, copy);
}
template <>
void Sgd(const SgdParams& params, int64_t n, float* p, float* m, const float* g, f16* copy) {
  RunRanges(HWY_DYNAMIC_DISPATCH(SgdRangeF16), params, n, p, m, g, copy);
}
template <>
void Lion(const LionParams& params, int64_t n, float* p, float* m, const float* g, float* copy) {
  RunRanges(HWY_DYNAMIC_DISPATCH(LionRangeF32), params, n, p, m, g, copy);
}
template <>
void Lion(const LionParams& params, int64_t n, float* p, float* m, const float* g, bf16* copy) {
  RunRanges(HWY_DYNAMIC_DISPATCH(LionRangeBf16), params, n, p, m, g, copy);
}
template <>
void Lion(const LionParams& params, int64_t n, float* p, float* m, const float* g, f16* copy) {
  RunRanges(HWY_DYNAMIC_DISPATCH(LionRangeF16), params, n, p, m, g, copy);
}

template <>
void AdamW(const AdamWParams& params, int64_t n, float* p, float* m, float* v, const float* g,
           float* copy) {
  RunRanges(HWY_DYNAMIC_DISPATCH(AdamWRangeF32), params, n, p, m, v, g, copy);
}
template <>
void AdamW(const AdamWParams& params, int64_t n, float* p, float* m, float* v, const float* g,
           bf16* copy) {
  RunRanges(HWY_DYNAMIC_DISPATCH(AdamWRangeBf16), params, n, p, m, v, g, copy);
}
template <>
void AdamW(const AdamWParams& params, int64_t n, float* p, float* m, float* v, const float* g,
           f16* copy) {
  RunRanges(HWY_DYNAMIC_DISPATCH(AdamWRangeF16), params, n, p, m, v, g, copy);
}

namespace {

// block(at, count): of elements [at, at + count).
template <typename Block>
double SumBlocks(int64_t n, void* workspace, const Block& block) {
  double* sums = static_cast<double*>(workspace);
  const int64_t blocks = (n + kSquaresBlock - 1) / kSquaresBlock;
  ParallelFor(0, blocks, 8, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      sums[b] = block(b * kSquaresBlock, std::min(kSquaresBlock, n - b * kSquaresBlock));
    }
  });
  double sum = 0.0;
  for (int64_t b = 0; b < blocks; ++b) sum += sums[b];
  return sum;
}

}  // namespace

double SumSquares(const float* g, int64_t n, void* workspace) {
  const auto run = HWY_DYNAMIC_DISPATCH(SumSquaresBlock);
  return SumBlocks(n, workspace, [&](int64_t at, int64_t count) { return run(g + at, count); });
}

double SumSquares(const bf16* g, int64_t n, void* workspace) {
  const auto run = HWY_DYNAMIC_DISPATCH(SumSquaresBlock);
  return SumBlocks(n, workspace, [&](int64_t at, int64_t count) {
    float values[kSquaresBlock];
    CastToFloat(g + at, count, values);
    return run(values, count);
  });
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
