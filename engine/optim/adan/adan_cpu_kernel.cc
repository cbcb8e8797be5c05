#include "engine/optim/adan/adan_cpu_kernel.h"

#include "engine/kernels/cpu/flat_ranges.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/optim/adan/adan_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

template <typename T>
void AdanRange(const AdanParams& a, int64_t count, float* p, const AdanStates& s, const float* g,
               T* copy) {
  const DF d;
  const AdanFactors f(a);
  const VF beta1 = hn::Set(d, a.beta1), rest1 = hn::Set(d, 1.0f - a.beta1);
  const VF beta2 = hn::Set(d, a.beta2), rest2 = hn::Set(d, 1.0f - a.beta2);
  const VF beta3 = hn::Set(d, a.beta3), rest3 = hn::Set(d, 1.0f - a.beta3);
  const VF rate = hn::Set(d, f.rate), second = hn::Set(d, f.second), root3 = hn::Set(d, f.root3);
  const VF shrink = hn::Set(d, f.shrink), past = hn::Set(d, f.past);
  const VF scale = hn::Set(d, a.gradient_scale), epsilon = hn::Set(d, a.epsilon);
  ForVectors(count, [&](int64_t i, int64_t left) MP_SIMD {
    const VF x = hn::Mul(LoadUpTo(d, g + i, left), scale);
    const VF change = hn::Mul(hn::Sub(x, LoadUpTo(d, s.g + i, left)), past);
    const VF m = hn::MulAdd(beta1, LoadUpTo(d, s.m + i, left), hn::Mul(rest1, x));
    const VF v = hn::MulAdd(beta2, LoadUpTo(d, s.v + i, left), hn::Mul(rest2, change));
    const VF ahead = hn::MulAdd(beta2, change, x);
    const VF n =
        hn::MulAdd(beta3, LoadUpTo(d, s.n + i, left), hn::Mul(rest3, hn::Mul(ahead, ahead)));
    const VF denominator = hn::MulAdd(hn::Sqrt(n), root3, epsilon);
    const VF step = hn::Div(hn::MulAdd(second, v, m), denominator);
    const VF new_p = hn::Mul(hn::NegMulAdd(rate, step, LoadUpTo(d, p + i, left)), shrink);
    StoreUpTo(m, d, s.m + i, left);
    StoreUpTo(v, d, s.v + i, left);
    StoreUpTo(n, d, s.n + i, left);
    StoreUpTo(x, d, s.g + i, left);
    StoreUpTo(new_p, d, p + i, left);
    if (copy != nullptr) StoreUpTo(new_p, d, copy + i, left);
  });
}

}  // namespace

void AdanRangeF32(const AdanParams& params, int64_t n, float* p, const AdanStates& states,
                  const float* g, float* copy) {
  AdanRange(params, n, p, states, g, copy);
}
void AdanRangeBf16(const AdanParams& params, int64_t n, float* p, const AdanStates& states,
                   const float* g, bf16* copy) {
  AdanRange(params, n, p, states, g, copy);
}
void AdanRangeF16(const AdanParams& params, int64_t n, float* p, const AdanStates& states,
                  const float* g, f16* copy) {
  AdanRange(params, n, p, states, g, copy);
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(AdanRangeF32);
HWY_EXPORT(AdanRangeBf16);
HWY_EXPORT(AdanRangeF16);

namespace {
template <typename Run, typename T>
void RunAdan(Run run, const AdanParams& params, int64_t n, float* p, const AdanStates& s,
             const float* g, T* copy) {
  ParallelFor(0, n, kFlatGrain, [&](int64_t first, int64_t last) {
    run(params, last - first, p + first, {s.m + first, s.v + first, s.n + first, s.g + first},
        g + first, copy == nullptr ? nullptr : copy + first);
  });
}
}  // namespace

template <>
void Adan(const AdanParams& params, int64_t n, float* p, const AdanStates& states, const float* g,
          float* copy) {
  RunAdan(HWY_DYNAMIC_DISPATCH(AdanRangeF32), params, n, p, states, g, copy);
}
template <>
void Adan(const AdanParams& params, int64_t n, float* p, const AdanStates& states, const float* g,
          bf16* copy) {
  RunAdan(HWY_DYNAMIC_DISPATCH(AdanRangeBf16), params, n, p, states, g, copy);
}
template <>
void Adan(const AdanParams& params, int64_t n, float* p, const AdanStates& states, const float* g,
          f16* copy) {
  RunAdan(HWY_DYNAMIC_DISPATCH(AdanRangeF16), params, n, p, states, g, copy);
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
