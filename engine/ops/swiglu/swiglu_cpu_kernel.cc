#include "engine/ops/swiglu/swiglu_cpu_kernel.h"

#include <algorithm>

#include "engine/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ops/swiglu/swiglu_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

HWY_INLINE VF Logistic(DF d, VF x) {
  const VF one = hn::Set(d, 1.0f);
  return hn::Div(one, hn::Add(one, FastExp(d, hn::Neg(x))));
}

template <typename T>
void ForwardRows(const T* x, int64_t first, int64_t last, int64_t width, T* y) {
  const DF d;
  for (int64_t row = first; row < last; ++row) {
    const T* gates = x + row * 2 * width;
    ForVectors(width, [&](int64_t i, int64_t n) MP_SIMD {
      const VF gate = LoadUpTo(d, gates + i, n);
      const VF silu = hn::Mul(gate, Logistic(d, gate));
      StoreUpTo(hn::Mul(silu, LoadUpTo(d, gates + width + i, n)), d, y + row * width + i, n);
    });
  }
}

// With s = logistic(gate): silu' = s + gate s (1 - s).
template <typename T>
void BackwardRows(const T* x, const T* dy, int64_t first, int64_t last, int64_t width, T* dx) {
  const DF d;
  for (int64_t row = first; row < last; ++row) {
    const T* gates = x + row * 2 * width;
    T* out = dx + row * 2 * width;
    ForVectors(width, [&](int64_t i, int64_t n) MP_SIMD {
      const VF gate = LoadUpTo(d, gates + i, n);
      const VF up = LoadUpTo(d, gates + width + i, n);
      const VF gradient = LoadUpTo(d, dy + row * width + i, n);
      const VF s = Logistic(d, gate);
      const VF slope = hn::MulAdd(gate, hn::NegMulAdd(s, s, s), s);
      StoreUpTo(hn::Mul(gradient, hn::Mul(up, slope)), d, out + i, n);
      StoreUpTo(hn::Mul(gradient, hn::Mul(gate, s)), d, out + width + i, n);
    });
  }
}

}  // namespace

void SwiGluForwardF32(const float* x, int64_t first, int64_t last, int64_t width, float* y) {
  ForwardRows(x, first, last, width, y);
}
void SwiGluForwardBf16(const bf16* x, int64_t first, int64_t last, int64_t width, bf16* y) {
  ForwardRows(x, first, last, width, y);
}
void SwiGluForwardF16(const f16* x, int64_t first, int64_t last, int64_t width, f16* y) {
  ForwardRows(x, first, last, width, y);
}
void SwiGluBackwardF32(const float* x, const float* dy, int64_t first, int64_t last, int64_t width,
                       float* dx) {
  BackwardRows(x, dy, first, last, width, dx);
}
void SwiGluBackwardBf16(const bf16* x, const bf16* dy, int64_t first, int64_t last, int64_t width,
                        bf16* dx) {
  BackwardRows(x, dy, first, last, width, dx);
}
void SwiGluBackwardF16(const f16* x, const f16* dy, int64_t first, int64_t last, int64_t width,
                       f16* dx) {
  BackwardRows(x, dy, first, last, width, dx);
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

namespace {
// Rows per thread at least.
int64_t RowGrain(int64_t width) { return std::max<int64_t>(1, 8192 / width); }
}  // namespace

template <>
void SwiGluForward(const float* x, int64_t rows, int64_t width, float* y) {
  const auto run = HWY_DYNAMIC_DISPATCH(SwiGluForwardF32);
  ParallelFor(0, rows, RowGrain(width),
              [&](int64_t first, int64_t last) { run(x, first, last, width, y); });
}
template <>
void SwiGluForward(const bf16* x, int64_t rows, int64_t width, bf16* y) {
  const auto run = HWY_DYNAMIC_DISPATCH(SwiGluForwardBf16);
  ParallelFor(0, rows, RowGrain(width),
              [&](int64_t first, int64_t last) { run(x, first, last, width, y); });
}
template <>
void SwiGluForward(const f16* x, int64_t rows, int64_t width, f16* y) {
  const auto run = HWY_DYNAMIC_DISPATCH(SwiGluForwardF16);
  ParallelFor(0, rows, RowGrain(width),
              [&](int64_t first, int64_t last) { run(x, first, last, width, y); });
}
template <>
void SwiGluBackward(const float* x, const float* dy, int64_t rows, int64_t width, float* dx) {
  const auto run = HWY_DYNAMIC_DISPATCH(SwiGluBackwardF32);
  ParallelFor(0, rows, RowGrain(width),
              [&](int64_t first, int64_t last) { run(x, dy, first, last, width, dx); });
}
template <>
void SwiGluBackward(const bf16* x, const bf16* dy, int64_t rows, int64_t width, bf16* dx) {
  const auto run = HWY_DYNAMIC_DISPATCH(SwiGluBackwardBf16);
  ParallelFor(0, rows, RowGrain(width),
              [&](int64_t first, int64_t last) { run(x, dy, first, last, width, dx); });
}
template <>
void SwiGluBackward(const f16* x, const f16* dy, int64_t rows, int64_t width, f16* dx) {
  const auto run = HWY_DYNAMIC_DISPATCH(SwiGluBackwardF16);
  ParallelFor(0, rows, RowGrain(width),
              [&](int64_t first, int64_t last) { run(x, dy, first, last, width, dx); });
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
