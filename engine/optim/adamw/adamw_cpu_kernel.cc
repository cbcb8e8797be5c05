#include "engine/optim/adamw/adamw_cpu_kernel.h"

#include <cmath>

#include "engine/kernels/cpu/flat_ranges.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/optim/adamw/adamw_cpu_kernel.cc"
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

}  // namespace

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

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(AdamWRangeF32);
HWY_EXPORT(AdamWRangeBf16);
HWY_EXPORT(AdamWRangeF16);

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

}  // namespace milepost::kernels
#endif  // HWY_ONCE
