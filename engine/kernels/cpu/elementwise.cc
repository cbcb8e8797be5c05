#include "engine/kernels/cpu/elementwise.h"

#include <algorithm>

#include "engine/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/elementwise.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/gelu-inl.h"
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

constexpr int64_t kGrain = 16384;

// out[i] = fn(a[i]).
template <typename In, typename Out, typename Fn>
void Map(const In* a, int64_t n, Out* out, const Fn& fn) {
  ParallelFor(0, n, kGrain, [=](int64_t begin, int64_t end) HWY_ATTR {
    ForVectors(end - begin, [&](int64_t i, int64_t count) MP_SIMD {
      const DF d;
      const int64_t at = begin + i;
      StoreUpTo(fn(d, LoadUpTo(d, a + at, count)), d, out + at, count);
    });
  });
}

// out[i] = fn(a[i], b[i]).
template <typename In, typename Out, typename Fn>
void Map(const In* a, const In* b, int64_t n, Out* out, const Fn& fn) {
  ParallelFor(0, n, kGrain, [=](int64_t begin, int64_t end) HWY_ATTR {
    ForVectors(end - begin, [&](int64_t i, int64_t count) MP_SIMD {
      const DF d;
      const int64_t at = begin + i;
      StoreUpTo(fn(d, LoadUpTo(d, a + at, count), LoadUpTo(d, b + at, count)), d, out + at, count);
    });
  });
}

template <typename T>
void GeluForwardImpl(const T* x, int64_t n, T* y) {
  Map(x, n, y, [](DF d, VF v) MP_SIMD { return GeluOf(d, v); });
}

template <typename T>
void GeluBackwardImpl(const T* x, const T* dy, int64_t n, T* dx) {
  Map(x, dy, n, dx, [](DF d, VF v, VF g) MP_SIMD { return hn::Mul(g, GeluWithSlope(d, v).slope); });
}

template <typename T>
void AddImpl(const T* a, const T* b, int64_t n, T* out) {
  Map(a, b, n, out, [](DF d, VF x, VF y) MP_SIMD { return hn::Add(x, y); });
}

}  // namespace

void GeluForwardF32(const float* x, int64_t n, float* y) { GeluForwardImpl(x, n, y); }
void GeluForwardBf16(const bf16* x, int64_t n, bf16* y) { GeluForwardImpl(x, n, y); }
void GeluForwardF16(const f16* x, int64_t n, f16* y) { GeluForwardImpl(x, n, y); }
void GeluBackwardF32(const float* x, const float* dy, int64_t n, float* dx) {
  GeluBackwardImpl(x, dy, n, dx);
}
void GeluBackwardBf16(const bf16* x, const bf16* dy, int64_t n, bf16* dx) {
  GeluBackwardImpl(x, dy, n, dx);
}
void GeluBackwardF16(const f16* x, const f16* dy, int64_t n, f16* dx) {
  GeluBackwardImpl(x, dy, n, dx);
}
void AddF32(const float* a, const float* b, int64_t n, float* out) { AddImpl(a, b, n, out); }
void AddBf16(const bf16* a, const bf16* b, int64_t n, bf16* out) { AddImpl(a, b, n, out); }
void AddF16(const f16* a, const f16* b, int64_t n, f16* out) { AddImpl(a, b, n, out); }

void CastToBf16Impl(const float* in, int64_t n, bf16* out) {
  Map(in, n, out, [](DF d, VF x) MP_SIMD { return x; });
}
void CastToFloatImpl(const bf16* in, int64_t n, float* out) {
  Map(in, n, out, [](DF d, VF x) MP_SIMD { return x; });
}
void CastToF16Impl(const float* in, int64_t n, f16* out) {
  Map(in, n, out, [](DF d, VF x) MP_SIMD { return x; });
}
void CastF16ToFloatImpl(const f16* in, int64_t n, float* out) {
  Map(in, n, out, [](DF d, VF x) MP_SIMD { return x; });
}
template <typename In, typename Out>
void CastRow(const In* in, int64_t n, Out* out) {
  const DF d;
  ForVectors(n, [&](int64_t i, int64_t count)
                    MP_SIMD { StoreUpTo(LoadUpTo(d, in + i, count), d, out + i, count); });
}
void CastRowToBf16(const float* in, int64_t n, bf16* out) { CastRow(in, n, out); }
void CastRowToF16(const float* in, int64_t n, f16* out) { CastRow(in, n, out); }
void CastRowFromBf16(const bf16* in, int64_t n, float* out) { CastRow(in, n, out); }
void CastRowFromF16(const f16* in, int64_t n, float* out) { CastRow(in, n, out); }
template <typename T>
void ScaleImpl(const T* x, int64_t n, float factor, T* y) {
  Map(x, n, y, [factor](DF d, VF v) MP_SIMD { return hn::Mul(v, hn::Set(d, factor)); });
}
void ScaleF32(const float* x, int64_t n, float factor, float* y) { ScaleImpl(x, n, factor, y); }
void ScaleBf16(const bf16* x, int64_t n, float factor, bf16* y) { ScaleImpl(x, n, factor, y); }
void ScaleF16(const f16* x, int64_t n, float factor, f16* y) { ScaleImpl(x, n, factor, y); }

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

namespace {
constexpr int64_t kRowGrain = 16384;  // elements

template <typename Cast, typename In, typename Out>
void ForEachRow(Cast cast, const In* in, int64_t in_row, int64_t rows, int64_t width, Out* out,
                int64_t out_row) {
  ParallelFor(0, rows, std::max<int64_t>(1, kRowGrain / width), [=](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) cast(in + i * in_row, width, out + i * out_row);
  });
}
}  // namespace

HWY_EXPORT(GeluForwardF32);
HWY_EXPORT(GeluForwardBf16);
HWY_EXPORT(GeluForwardF16);
HWY_EXPORT(GeluBackwardF32);
HWY_EXPORT(GeluBackwardBf16);
HWY_EXPORT(GeluBackwardF16);
HWY_EXPORT(AddF32);
HWY_EXPORT(AddBf16);
HWY_EXPORT(AddF16);
HWY_EXPORT(CastToBf16Impl);
HWY_EXPORT(CastToFloatImpl);
HWY_EXPORT(CastToF16Impl);
HWY_EXPORT(CastF16ToFloatImpl);
HWY_EXPORT(CastRowToBf16);
HWY_EXPORT(CastRowToF16);
HWY_EXPORT(CastRowFromBf16);
HWY_EXPORT(CastRowFromF16);
HWY_EXPORT(ScaleF32);
HWY_EXPORT(ScaleBf16);
HWY_EXPORT(ScaleF16);

template <>
void GeluForward(const float* x, int64_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(GeluForwardF32)(x, n, y);
}
template <>
void GeluForward(const bf16* x, int64_t n, bf16* y) {
  HWY_DYNAMIC_DISPATCH(GeluForwardBf16)(x, n, y);
}
template <>
void GeluForward(const f16* x, int64_t n, f16* y) {
  HWY_DYNAMIC_DISPATCH(GeluForwardF16)(x, n, y);
}
template <>
void GeluBackward(const float* x, const float* dy, int64_t n, float* dx) {
  HWY_DYNAMIC_DISPATCH(GeluBackwardF32)(x, dy, n, dx);
}
template <>
void GeluBackward(const bf16* x, const bf16* dy, int64_t n, bf16* dx) {
  HWY_DYNAMIC_DISPATCH(GeluBackwardBf16)(x, dy, n, dx);
}
template <>
void GeluBackward(const f16* x, const f16* dy, int64_t n, f16* dx) {
  HWY_DYNAMIC_DISPATCH(GeluBackwardF16)(x, dy, n, dx);
}
template <>
void Add(const float* a, const float* b, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(AddF32)(a, b, n, out);
}
template <>
void Add(const bf16* a, const bf16* b, int64_t n, bf16* out) {
  HWY_DYNAMIC_DISPATCH(AddBf16)(a, b, n, out);
}
template <>
void Add(const f16* a, const f16* b, int64_t n, f16* out) {
  HWY_DYNAMIC_DISPATCH(AddF16)(a, b, n, out);
}

void CastToBf16(const float* in, int64_t n, bf16* out) {
  HWY_DYNAMIC_DISPATCH(CastToBf16Impl)(in, n, out);
}
void CastToFloat(const bf16* in, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(CastToFloatImpl)(in, n, out);
}
void CastToF16(const float* in, int64_t n, f16* out) {
  HWY_DYNAMIC_DISPATCH(CastToF16Impl)(in, n, out);
}
void CastToFloat(const f16* in, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(CastF16ToFloatImpl)(in, n, out);
}

template <>
void CastRowsFromFloat(const float* in, int64_t in_row, int64_t rows, int64_t width, bf16* out,
                       int64_t out_row) {
  ForEachRow(HWY_DYNAMIC_DISPATCH(CastRowToBf16), in, in_row, rows, width, out, out_row);
}
template <>
void CastRowsFromFloat(const float* in, int64_t in_row, int64_t rows, int64_t width, f16* out,
                       int64_t out_row) {
  ForEachRow(HWY_DYNAMIC_DISPATCH(CastRowToF16), in, in_row, rows, width, out, out_row);
}
template <>
void CastRowsToFloat(const bf16* in, int64_t in_row, int64_t rows, int64_t width, float* out,
                     int64_t out_row) {
  ForEachRow(HWY_DYNAMIC_DISPATCH(CastRowFromBf16), in, in_row, rows, width, out, out_row);
}
template <>
void CastRowsToFloat(const f16* in, int64_t in_row, int64_t rows, int64_t width, float* out,
                     int64_t out_row) {
  ForEachRow(HWY_DYNAMIC_DISPATCH(CastRowFromF16), in, in_row, rows, width, out, out_row);
}

template <>
void ScaleTo(const float* x, int64_t n, float factor, float* y) {
  HWY_DYNAMIC_DISPATCH(ScaleF32)(x, n, factor, y);
}
template <>
void ScaleTo(const bf16* x, int64_t n, float factor, bf16* y) {
  HWY_DYNAMIC_DISPATCH(ScaleBf16)(x, n, factor, y);
}
template <>
void ScaleTo(const f16* x, int64_t n, float factor, f16* y) {
  HWY_DYNAMIC_DISPATCH(ScaleF16)(x, n, factor, y);
}

void Scale(float* x, int64_t n, float factor) { ScaleTo<float>(x, n, factor, x); }

void Accumulate(const float* x, int64_t n, float* out) { Add<float>(out, x, n, out); }

void Fill(float* out, int64_t n, float value) {
  ParallelFor(0, n, 65536,
              [=](int64_t begin, int64_t end) { std::fill(out + begin, out + end, value); });
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
