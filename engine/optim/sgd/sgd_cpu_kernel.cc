#include "engine/optim/sgd/sgd_cpu_kernel.h"

#include <cmath>

#include "engine/kernels/cpu/flat_ranges.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/optim/sgd/sgd_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

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

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(SgdRangeF32);
HWY_EXPORT(SgdRangeBf16);
HWY_EXPORT(SgdRangeF16);

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

}  // namespace milepost::kernels
#endif  // HWY_ONCE
