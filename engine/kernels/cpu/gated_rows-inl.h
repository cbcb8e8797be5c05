// Gated activations on packed rows, for the rooms that differ in the activation alone. Included
// once for each SIMD target, as simd-inl.h is.
//
//   struct SiluGate {
//     static VF Value(DF d, VF gate);
//     static Activated WithSlope(DF d, VF gate);
//   };
//   GatedForwardRows<SiluGate>(x, first, last, width, y);
#if defined(MILEPOST_ENGINE_KERNELS_CPU_GATED_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MILEPOST_ENGINE_KERNELS_CPU_GATED_ROWS_INL_H_
#undef MILEPOST_ENGINE_KERNELS_CPU_GATED_ROWS_INL_H_
#else
#define MILEPOST_ENGINE_KERNELS_CPU_GATED_ROWS_INL_H_
#endif

#include <cstdint>

#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

// Rows [first, last) of x [rows, 2 width]: gate, then up; y [rows, width] = activation(gate) up.
template <typename Gate, typename T>
void GatedForwardRows(const T* x, int64_t first, int64_t last, int64_t width, T* y) {
  const DF d;
  for (int64_t row = first; row < last; ++row) {
    const T* gates = x + row * 2 * width;
    ForVectors(width, [&](int64_t i, int64_t n) MP_SIMD {
      const VF value = Gate::Value(d, LoadUpTo(d, gates + i, n));
      StoreUpTo(hn::Mul(value, LoadUpTo(d, gates + width + i, n)), d, y + row * width + i, n);
    });
  }
}

// dx [rows, 2 width], from dy [rows, width]. dx may be x.
template <typename Gate, typename T>
void GatedBackwardRows(const T* x, const T* dy, int64_t first, int64_t last, int64_t width, T* dx) {
  const DF d;
  for (int64_t row = first; row < last; ++row) {
    const T* gates = x + row * 2 * width;
    T* out = dx + row * 2 * width;
    ForVectors(width, [&](int64_t i, int64_t n) MP_SIMD {
      const auto gate = Gate::WithSlope(d, LoadUpTo(d, gates + i, n));
      const VF up = LoadUpTo(d, gates + width + i, n);
      const VF gradient = LoadUpTo(d, dy + row * width + i, n);
      StoreUpTo(hn::Mul(gradient, hn::Mul(up, gate.slope)), d, out + i, n);
      StoreUpTo(hn::Mul(gradient, gate.value), d, out + width + i, n);
    });
  }
}

}  // namespace
}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MILEPOST_ENGINE_KERNELS_CPU_GATED_ROWS_INL_H_
