#include <algorithm>

#include "engine/kernels/cpu/column_sum.h"
#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/bias_gradient.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

// partial[width] = sum of rows [first, last), four rows at a time so that the partial sums are
// touched a quarter as often.
template <typename T>
void SumRows(const T* dy, int64_t first, int64_t last, int64_t width, float* partial) {
  std::fill(partial, partial + width, 0.0f);
  int64_t row = first;
  for (; row + 4 <= last; row += 4) {
    const T* p = dy + row * width;
    ForVectors(width, [&](int64_t i, int64_t n) MP_SIMD {
      const DF d;
      const VF a = hn::Add(LoadUpTo(d, p + i, n), LoadUpTo(d, p + width + i, n));
      const VF b = hn::Add(LoadUpTo(d, p + 2 * width + i, n), LoadUpTo(d, p + 3 * width + i, n));
      const VF sum = hn::Add(LoadUpTo(d, partial + i, n), hn::Add(a, b));
      StoreUpTo(sum, d, partial + i, n);
    });
  }
  for (; row < last; ++row) {
    const T* p = dy + row * width;
    ForVectors(width, [&](int64_t i, int64_t n) MP_SIMD {
      const DF d;
      const VF sum = hn::Add(LoadUpTo(d, partial + i, n), LoadUpTo(d, p + i, n));
      StoreUpTo(sum, d, partial + i, n);
    });
  }
}

}  // namespace

void SumRowsF32(const float* dy, int64_t first, int64_t last, int64_t width, float* partial) {
  SumRows(dy, first, last, width, partial);
}
void SumRowsBf16(const bf16* dy, int64_t first, int64_t last, int64_t width, float* partial) {
  SumRows(dy, first, last, width, partial);
}
void SumRowsF16(const f16* dy, int64_t first, int64_t last, int64_t width, float* partial) {
  SumRows(dy, first, last, width, partial);
}

void AddPartialsImpl(const float* partials, int64_t blocks, int64_t stride, int64_t width,
                     bool accumulate, float* out) {
  ParallelFor(0, width, 256, [=](int64_t begin, int64_t end) HWY_ATTR {
    ForVectors(end - begin, [&](int64_t i, int64_t n) MP_SIMD {
      const DF d;
      const int64_t at = begin + i;
      VF sum = hn::Zero(d);
      for (int64_t b = 0; b < blocks; ++b) {
        sum = hn::Add(sum, LoadUpTo(d, partials + b * stride + at, n));
      }
      if (accumulate) sum = hn::Add(sum, LoadUpTo(d, out + at, n));
      StoreUpTo(sum, d, out + at, n);
    });
  });
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(SumRowsF32);
HWY_EXPORT(SumRowsBf16);
HWY_EXPORT(SumRowsF16);
HWY_EXPORT(AddPartialsImpl);

void AddPartials(const float* partials, int64_t blocks, int64_t stride, int64_t width,
                 bool accumulate, float* out) {
  HWY_DYNAMIC_DISPATCH(AddPartialsImpl)(partials, blocks, stride, width, accumulate, out);
}

namespace {
template <typename T, typename Sum>
void BiasGradientWith(Sum sum, const T* dy, int64_t rows, int64_t width, bool accumulate, float* db,
                      void* workspace) {
  const RowBlocks blocks(rows);
  const int64_t stride = PartialStride(width);
  float* partials = static_cast<float*>(workspace);
  ParallelTasks(blocks.count, [&](int64_t block, int) {
    sum(dy, blocks.First(block), blocks.Last(block), width, partials + block * stride);
  });
  AddPartials(partials, blocks.count, stride, width, accumulate, db);
}
}  // namespace

template <>
void BiasGradient(const float* dy, int64_t rows, int64_t width, bool accumulate, float* db,
                  void* workspace) {
  BiasGradientWith(HWY_DYNAMIC_DISPATCH(SumRowsF32), dy, rows, width, accumulate, db, workspace);
}
template <>
void BiasGradient(const bf16* dy, int64_t rows, int64_t width, bool accumulate, float* db,
                  void* workspace) {
  BiasGradientWith(HWY_DYNAMIC_DISPATCH(SumRowsBf16), dy, rows, width, accumulate, db, workspace);
}
template <>
void BiasGradient(const f16* dy, int64_t rows, int64_t width, bool accumulate, float* db,
                  void* workspace) {
  BiasGradientWith(HWY_DYNAMIC_DISPATCH(SumRowsF16), dy, rows, width, accumulate, db, workspace);
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
