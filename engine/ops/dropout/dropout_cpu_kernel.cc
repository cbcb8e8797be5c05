#include "engine/ops/dropout/dropout_cpu_kernel.h"

#include <algorithm>

#include "engine/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ops/dropout/dropout_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

constexpr int64_t kChunk = 256;

template <typename T>
void Range(const T* x, int64_t begin, int64_t end, const DropoutParams& params, T* y) {
  const DF d;
  alignas(64) float keep[kChunk];
  for (int64_t at = begin; at < end; at += kChunk) {
    const int64_t count = std::min(kChunk, end - at);
    DropoutRow(params, static_cast<uint64_t>(at), count, keep);
    ForVectors(count, [&](int64_t i, int64_t n) MP_SIMD {
      const VF value = LoadUpTo(d, x + at + i, n);
      StoreUpTo(hn::Mul(value, LoadUpTo(d, keep + i, n)), d, y + at + i, n);
    });
  }
}

}  // namespace

void DropoutRangeF32(const float* x, int64_t begin, int64_t end, const DropoutParams& params,
                     float* y) {
  Range(x, begin, end, params, y);
}
void DropoutRangeBf16(const bf16* x, int64_t begin, int64_t end, const DropoutParams& params,
                      bf16* y) {
  Range(x, begin, end, params, y);
}
void DropoutRangeF16(const f16* x, int64_t begin, int64_t end, const DropoutParams& params,
                     f16* y) {
  Range(x, begin, end, params, y);
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(DropoutRangeF32);
HWY_EXPORT(DropoutRangeBf16);
HWY_EXPORT(DropoutRangeF16);

namespace {

template <typename T, typename Run>
void Apply(Run run, const T* x, int64_t n, const DropoutParams& params, T* y) {
  ParallelFor(0, n, 8192, [&](int64_t begin, int64_t end) { run(x, begin, end, params, y); });
}

}  // namespace

template <>
void Dropout(const float* x, int64_t n, const DropoutParams& params, float* y) {
  Apply(HWY_DYNAMIC_DISPATCH(DropoutRangeF32), x, n, params, y);
}
template <>
void Dropout(const bf16* x, int64_t n, const DropoutParams& params, bf16* y) {
  Apply(HWY_DYNAMIC_DISPATCH(DropoutRangeBf16), x, n, params, y);
}
template <>
void Dropout(const f16* x, int64_t n, const DropoutParams& params, f16* y) {
  Apply(HWY_DYNAMIC_DISPATCH(DropoutRangeF16), x, n, params, y);
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
