#include "engine/optim/lion/lion_cpu_kernel.h"

#include <cmath>

#include "engine/kernels/cpu/flat_ranges.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/optim/lion/lion_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

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

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(LionRangeF32);
HWY_EXPORT(LionRangeBf16);
HWY_EXPORT(LionRangeF16);

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

}  // namespace milepost::kernels
#endif  // HWY_ONCE
