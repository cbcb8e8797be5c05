// GELU's tanh form on vectors. Included once for each SIMD target, as simd-inl.h is.
#if defined(MILEPOST_ENGINE_KERNELS_CPU_GELU_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MILEPOST_ENGINE_KERNELS_CPU_GELU_INL_H_
#undef MILEPOST_ENGINE_KERNELS_CPU_GELU_INL_H_
#else
#define MILEPOST_ENGINE_KERNELS_CPU_GELU_INL_H_
#endif

#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

// gelu(x) = x * s(2u), u = sqrt(2/pi) (x + 0.044715 x^3), s the logistic function: the same as the
// tanh form, without a tanh.
constexpr float kTwoU1 = 1.5957691216f;              // 2 sqrt(2/pi)
constexpr float kTwoU3 = 1.5957691216f * 0.044715f;  // of x^3

HWY_INLINE VF GeluGate(DF d, VF x, VF x2) {
  const VF two_u = hn::Mul(x, hn::MulAdd(x2, hn::Set(d, kTwoU3), hn::Set(d, kTwoU1)));
  const VF one = hn::Set(d, 1.0f);
  return hn::Div(one, hn::Add(one, FastExp(d, hn::Neg(two_u))));
}

HWY_INLINE VF GeluOf(DF d, VF x) { return hn::Mul(x, GeluGate(d, x, hn::Mul(x, x))); }

// gelu' = s + x s (1 - s) (2u)'.
HWY_INLINE Activated GeluWithSlope(DF d, VF x) {
  const VF x2 = hn::Mul(x, x);
  const VF s = GeluGate(d, x, x2);
  const VF slope = hn::MulAdd(x2, hn::Set(d, 3.0f * kTwoU3), hn::Set(d, kTwoU1));
  const VF rest = hn::Mul(hn::Mul(x, slope), hn::NegMulAdd(s, s, s));
  return {hn::Mul(x, s), hn::Add(s, rest)};
}

}  // namespace
}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MILEPOST_ENGINE_KERNELS_CPU_GELU_INL_H_
