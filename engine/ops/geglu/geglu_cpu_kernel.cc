#include "engine/ops/geglu/geglu_cpu_kernel.h"

#include "engine/kernels/cpu/gated_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ops/geglu/geglu_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/gated_rows-inl.h"
#include "engine/kernels/cpu/gelu-inl.h"
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

struct TanhGeluGate {
  static HWY_INLINE VF Value(DF d, VF gate) { return GeluOf(d, gate); }
  static HWY_INLINE Activated WithSlope(DF d, VF gate) { return GeluWithSlope(d, gate); }
};

}  // namespace

void GeGluForwardF32(const float* x, int64_t first, int64_t last, int64_t width, float* y) {
  GatedForwardRows<TanhGeluGate>(x, first, last, width, y);
}
void GeGluForwardBf16(const bf16* x, int64_t first, int64_t last, int64_t width, bf16* y) {
  GatedForwardRows<TanhGeluGate>(x, first, last, width, y);
}
void GeGluForwardF16(const f16* x, int64_t first, int64_t last, int64_t width, f16* y) {
  GatedForwardRows<TanhGeluGate>(x, first, last, width, y);
}
void GeGluBackwardF32(const float* x, const float* dy, int64_t first, int64_t last, int64_t width,
                      float* dx) {
  GatedBackwardRows<TanhGeluGate>(x, dy, first, last, width, dx);
}
void GeGluBackwardBf16(const bf16* x, const bf16* dy, int64_t first, int64_t last, int64_t width,
                       bf16* dx) {
  GatedBackwardRows<TanhGeluGate>(x, dy, first, last, width, dx);
}
void GeGluBackwardF16(const f16* x, const f16* dy, int64_t first, int64_t last, int64_t width,
                      f16* dx) {
  GatedBackwardRows<TanhGeluGate>(x, dy, first, last, width, dx);
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(GeGluForwardF32);
HWY_EXPORT(GeGluForwardBf16);
HWY_EXPORT(GeGluForwardF16);
HWY_EXPORT(GeGluBackwardF32);
HWY_EXPORT(GeGluBackwardBf16);
HWY_EXPORT(GeGluBackwardF16);

template <>
void GeGluForward(const float* x, int64_t rows, int64_t width, float* y) {
  RunGatedForward(HWY_DYNAMIC_DISPATCH(GeGluForwardF32), x, rows, width, y);
}
template <>
void GeGluForward(const bf16* x, int64_t rows, int64_t width, bf16* y) {
  RunGatedForward(HWY_DYNAMIC_DISPATCH(GeGluForwardBf16), x, rows, width, y);
}
template <>
void GeGluForward(const f16* x, int64_t rows, int64_t width, f16* y) {
  RunGatedForward(HWY_DYNAMIC_DISPATCH(GeGluForwardF16), x, rows, width, y);
}
template <>
void GeGluBackward(const float* x, const float* dy, int64_t rows, int64_t width, float* dx) {
  RunGatedBackward(HWY_DYNAMIC_DISPATCH(GeGluBackwardF32), x, dy, rows, width, dx);
}
template <>
void GeGluBackward(const bf16* x, const bf16* dy, int64_t rows, int64_t width, bf16* dx) {
  RunGatedBackward(HWY_DYNAMIC_DISPATCH(GeGluBackwardBf16), x, dy, rows, width, dx);
}
template <>
void GeGluBackward(const f16* x, const f16* dy, int64_t rows, int64_t width, f16* dx) {
  RunGatedBackward(HWY_DYNAMIC_DISPATCH(GeGluBackwardF16), x, dy, rows, width, dx);
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
