#include "engine/ops/rope/rope_cpu_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ops/rope/rope_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

template <bool kForward, typename T>
HWY_INLINE void TurnHead(const T* x, const float* table, int64_t half, T* out) {
  const DF d;
  ForVectors(half, [&](int64_t i, int64_t n) MP_SIMD {
    const VF a = LoadUpTo(d, x + i, n), b = LoadUpTo(d, x + half + i, n);
    const VF cosine = LoadUpTo(d, table + i, n), sine = LoadUpTo(d, table + half + i, n);
    const VF as = hn::Mul(a, sine), bs = hn::Mul(b, sine);
    StoreUpTo(kForward ? hn::MulSub(a, cosine, bs) : hn::MulAdd(a, cosine, bs), d, out + i, n);
    StoreUpTo(kForward ? hn::MulAdd(b, cosine, as) : hn::MulSub(b, cosine, as), d, out + half + i,
              n);
  });
}

template <bool kForward, typename T>
void TurnRows(const RopeShape& shape, const T* x, const float* table, int64_t first, int64_t last,
              T* out) {
  const int64_t turned = shape.heads * shape.head_dim;
  for (int64_t row = first; row < last; ++row) {
    const int64_t at = row * shape.width;
    const int64_t position =
        shape.positions == nullptr ? row % shape.sequence : shape.positions[row];
    const float* angles = table + position * shape.head_dim;
    for (int64_t i = at; i < at + turned; i += shape.head_dim) {
      TurnHead<kForward>(x + i, angles, shape.head_dim / 2, out + i);
    }
    if (out == x) continue;
    std::memcpy(static_cast<void*>(out + at + turned), x + at + turned,
                (shape.width - turned) * sizeof(T));
  }
}

}  // namespace

void RopeRowsF32(const RopeShape& shape, const float* x, const float* table, bool forward,
                 int64_t first, int64_t last, float* out) {
  forward ? TurnRows<true>(shape, x, table, first, last, out)
          : TurnRows<false>(shape, x, table, first, last, out);
}
void RopeRowsBf16(const RopeShape& shape, const bf16* x, const float* table, bool forward,
                  int64_t first, int64_t last, bf16* out) {
  forward ? TurnRows<true>(shape, x, table, first, last, out)
          : TurnRows<false>(shape, x, table, first, last, out);
}
void RopeRowsF16(const RopeShape& shape, const f16* x, const float* table, bool forward,
                 int64_t first, int64_t last, f16* out) {
  forward ? TurnRows<true>(shape, x, table, first, last, out)
          : TurnRows<false>(shape, x, table, first, last, out);
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(RopeRowsF32);
HWY_EXPORT(RopeRowsBf16);
HWY_EXPORT(RopeRowsF16);

namespace {

int64_t RowGrain(int64_t width) { return std::max<int64_t>(1, 8192 / width); }

}  // namespace

void RopeTable(const RopeParams& params, const int32_t* positions, int64_t rows, int64_t head_dim,
               float* table) {
  const int64_t half = head_dim / 2;
  ParallelFor(0, rows, 16, [&](int64_t first, int64_t last) {
    for (int64_t i = 0; i < half; ++i) {
      const double frequency = RopeFrequency(params, i, head_dim);
      for (int64_t t = first; t < last; ++t) {
        const int64_t position = positions == nullptr ? t : positions[t];
        const double angle = static_cast<double>(position) * frequency;
        table[t * head_dim + i] = static_cast<float>(std::cos(angle));
        table[t * head_dim + half + i] = static_cast<float>(std::sin(angle));
      }
    }
  });
}

template <>
void Rope(const RopeShape& shape, const float* x, const float* table, bool forward, float* out) {
  const auto run = HWY_DYNAMIC_DISPATCH(RopeRowsF32);
  ParallelFor(
      0, shape.batch * shape.sequence, RowGrain(shape.width),
      [&](int64_t first, int64_t last) { run(shape, x, table, forward, first, last, out); });
}
template <>
void Rope(const RopeShape& shape, const bf16* x, const float* table, bool forward, bf16* out) {
  const auto run = HWY_DYNAMIC_DISPATCH(RopeRowsBf16);
  ParallelFor(
      0, shape.batch * shape.sequence, RowGrain(shape.width),
      [&](int64_t first, int64_t last) { run(shape, x, table, forward, first, last, out); });
}
template <>
void Rope(const RopeShape& shape, const f16* x, const float* table, bool forward, f16* out) {
  const auto run = HWY_DYNAMIC_DISPATCH(RopeRowsF16);
  ParallelFor(
      0, shape.batch * shape.sequence, RowGrain(shape.width),
      [&](int64_t first, int64_t last) { run(shape, x, table, forward, first, last, out); });
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
