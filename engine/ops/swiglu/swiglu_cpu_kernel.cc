#include "engine/ops/swiglu/swiglu_cpu_kernel.h"

#include "engine/kernels/cpu/gated_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ops/swiglu/swiglu_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/gated_rows-inl.h"
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

HWY_INLINE VF Logistic(DF d, VF x) {
  const VF one = hn::Set(d, 1.0f);
  return hn::Div(one, hn::Add(one, FastExp(d, hn::Neg(x))));
}

struct SiluGate {
  static HWY_INLINE VF Value(DF d, VF gate) { return hn::Mul(gate, Logistic(d, gate)); }
  // With s = logistic(gate): silu' = s + gate s (1 - s).
  static HWY_INLINE Activated WithSlope(DF d, VF gate) {
    const VF s = Logistic(d, gate);
    return {hn::Mul(gate, s), hn::MulAdd(gate, hn::NegMulAdd(s, s, s), s)};
  }
};

}  // namespace

void SwiGluForwardF32(const float* x, int64_t first, int64_t last, int64_t width, float* y) {
  GatedForwardRows<SiluGate>(x, first, last, width, y);
}
void SwiGluForwardBf16(const bf16* x, int64_t first, int64_t last, int64_t width, bf16* y) {
  GatedForwardRows<SiluGate>(x, first, last, width, y);
}
void SwiGluForwardF16(const f16* x, int64_t first, int64_t last, int64_t width, f16* y) {
  GatedForwardRows<SiluGate>(x, first, last, width, y);
}
void SwiGluBackwardF32(const float* x, const float* dy, int64_t first, int64_t last, int64_t width,
                       float* dx) {
  GatedBackwardRows<SiluGate>(x, dy, first, last, width, dx);
}
void SwiGluBackwardBf16(const bf16* x, const bf16* dy, int64_t first, int64_t last, int64_t width,
                        bf16* dx) {
  GatedBackwardRows<SiluGate>(x, dy, first, last, width, dx);
}
void SwiGluBackwardF16(const f16* x, const f16* dy, int64_t first, int64_t last, int64_t width,
                       f16* dx) {
  GatedBackwardRows<SiluGate>(x, dy, first, last, width, dx);
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(SwiGluForwardF32);
HWY_EXPORT(SwiGluForwardBf16);
HWY_EXPORT(SwiGluForwardF16);
HWY_EXPORT(SwiGluBackwardF32);
HWY_EXPORT(SwiGluBackwardBf16);
HWY_EXPORT(SwiGluBackwardF16);

template <>
void SwiGluForward(const float* x, int64_t rows, int64_t width, float* y) {
  RunGatedForward(HWY_DYNAMIC_DISPATCH(SwiGluForwardF32), x, rows, width, y);
}
template <>
void SwiGluForward(const bf16* x, int64_t rows, int64_t width, bf16* y) {
  RunGatedForward(HWY_DYNAMIC_DISPATCH(SwiGluForwardBf16), x, rows, width, y);
}
template <>
void SwiGluForward(const f16* x, int64_t rows, int64_t width, f16* y) {
  RunGatedForward(HWY_DYNAMIC_DISPATCH(SwiGluForwardF16), x, rows, width, y);
}
template <>
void SwiGluBackward(const float* x, const float* dy, int64_t rows, int64_t width, float* dx) {
  RunGatedBackward(HWY_DYNAMIC_DISPATCH(SwiGluBackwardF32), x, dy, rows, width, dx);
}
template <>
void SwiGluBackward(const bf16* x, const bf16* dy, int64_t rows, int64_t width, bf16* dx) {
  RunGatedBackward(HWY_DYNAMIC_DISPATCH(SwiGluBackwardBf16), x, dy, rows, width, dx);
}
template <>
void SwiGluBackward(const f16* x, const f16* dy, int64_t rows, int64_t width, f16* dx) {
  RunGatedBackward(HWY_DYNAMIC_DISPATCH(SwiGluBackwardF16), x, dy, rows, width, dx);
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
