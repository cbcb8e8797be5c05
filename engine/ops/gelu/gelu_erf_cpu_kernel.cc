#include "engine/ops/gelu/gelu_erf_cpu_kernel.h"

#include "engine/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ops/gelu/gelu_erf_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

struct Normal {
  VF cumulative;  // Phi(x)
  VF bell;        // exp(-x^2 / 2)
};

// With z = |x| / sqrt(2) and t = 1 / (1 + 0.4 z): erfc(z) exp(z^2) = t P(t). P is a least-maximum
// fit of degree 8, relative error 2.3e-7 in fp32.
HWY_INLINE Normal NormalOf(DF d, VF x) {
  const VF z = hn::Mul(hn::Abs(x), hn::Set(d, 0.7071067812f));
  const VF t = hn::Div(hn::Set(d, 1.0f), hn::MulAdd(z, hn::Set(d, 0.4f), hn::Set(d, 1.0f)));
  VF p = hn::Set(d, 4.415425682e-02f);
  p = hn::MulAdd(p, t, hn::Set(d, -1.544068665e-01f));
  p = hn::MulAdd(p, t, hn::Set(d, 1.130286585e-01f));
  p = hn::MulAdd(p, t, hn::Set(d, 5.486421143e-02f));
  p = hn::MulAdd(p, t, hn::Set(d, 1.024988499e-01f));
  p = hn::MulAdd(p, t, hn::Set(d, 1.837786492e-01f));
  p = hn::MulAdd(p, t, hn::Set(d, 2.043221965e-01f));
  p = hn::MulAdd(p, t, hn::Set(d, 2.261064723e-01f));
  p = hn::MulAdd(p, t, hn::Set(d, 2.256536481e-01f));
  const VF bell = FastExp(d, hn::Neg(hn::Mul(z, z)));
  const VF tail = hn::Mul(hn::Mul(hn::Set(d, 0.5f), t), hn::Mul(p, bell));
  const auto negative = hn::Lt(x, hn::Zero(d));
  return {hn::IfThenElse(negative, tail, hn::Sub(hn::Set(d, 1.0f), tail)), bell};
}

template <typename T>
void ForwardRange(const T* x, int64_t n, T* y) {
  const DF d;
  ForVectors(n, [&](int64_t i, int64_t count) MP_SIMD {
    const VF v = LoadUpTo(d, x + i, count);
    StoreUpTo(hn::Mul(v, NormalOf(d, v).cumulative), d, y + i, count);
  });
}

template <typename T>
void BackwardRange(const T* x, const T* dy, int64_t n, T* dx) {
  const DF d;
  ForVectors(n, [&](int64_t i, int64_t count) MP_SIMD {
    const VF v = LoadUpTo(d, x + i, count);
    const Normal normal = NormalOf(d, v);
    const VF density = hn::Mul(normal.bell, hn::Set(d, 0.3989422804f));
    const VF slope = hn::MulAdd(v, density, normal.cumulative);
    StoreUpTo(hn::Mul(LoadUpTo(d, dy + i, count), slope), d, dx + i, count);
  });
}

}  // namespace

void GeluErfForwardF32(const float* x, int64_t n, float* y) { ForwardRange(x, n, y); }
void GeluErfForwardBf16(const bf16* x, int64_t n, bf16* y) { ForwardRange(x, n, y); }
void GeluErfForwardF16(const f16* x, int64_t n, f16* y) { ForwardRange(x, n, y); }
void GeluErfBackwardF32(const float* x, const float* dy, int64_t n, float* dx) {
  BackwardRange(x, dy, n, dx);
}
void GeluErfBackwardBf16(const bf16* x, const bf16* dy, int64_t n, bf16* dx) {
  BackwardRange(x, dy, n, dx);
}
void GeluErfBackwardF16(const f16* x, const f16* dy, int64_t n, f16* dx) {
  BackwardRange(x, dy, n, dx);
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(GeluErfForwardF32);
HWY_EXPORT(GeluErfForwardBf16);
HWY_EXPORT(GeluErfForwardF16);
HWY_EXPORT(GeluErfBackwardF32);
HWY_EXPORT(GeluErfBackwardBf16);
HWY_EXPORT(GeluErfBackwardF16);

namespace {

constexpr int64_t kGrain = 16384;

template <typename T, typename Range>
void Forward(Range range, const T* x, int64_t n, T* y) {
  ParallelFor(0, n, kGrain,
              [=](int64_t begin, int64_t end) { range(x + begin, end - begin, y + begin); });
}

template <typename T, typename Range>
void Backward(Range range, const T* x, const T* dy, int64_t n, T* dx) {
  ParallelFor(0, n, kGrain, [=](int64_t begin, int64_t end) {
    range(x + begin, dy + begin, end - begin, dx + begin);
  });
}

}  // namespace

template <>
void GeluErfForward(const float* x, int64_t n, float* y) {
  Forward(HWY_DYNAMIC_DISPATCH(GeluErfForwardF32), x, n, y);
}
template <>
void GeluErfForward(const bf16* x, int64_t n, bf16* y) {
  Forward(HWY_DYNAMIC_DISPATCH(GeluErfForwardBf16), x, n, y);
}
template <>
void GeluErfForward(const f16* x, int64_t n, f16* y) {
  Forward(HWY_DYNAMIC_DISPATCH(GeluErfForwardF16), x, n, y);
}
template <>
void GeluErfBackward(const float* x, const float* dy, int64_t n, float* dx) {
  Backward(HWY_DYNAMIC_DISPATCH(GeluErfBackwardF32), x, dy, n, dx);
}
template <>
void GeluErfBackward(const bf16* x, const bf16* dy, int64_t n, bf16* dx) {
  Backward(HWY_DYNAMIC_DISPATCH(GeluErfBackwardBf16), x, dy, n, dx);
}
template <>
void GeluErfBackward(const f16* x, const f16* dy, int64_t n, f16* dx) {
  Backward(HWY_DYNAMIC_DISPATCH(GeluErfBackwardF16), x, dy, n, dx);
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
