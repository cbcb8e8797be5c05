#include "engine/kernels/cpu/vector_product.h"

#include <algorithm>

#include "engine/kernels/cpu/parallel.h"

#ifndef MILEPOST_ENGINE_KERNELS_CPU_VECTOR_PRODUCT_SIZES_
#define MILEPOST_ENGINE_KERNELS_CPU_VECTOR_PRODUCT_SIZES_  // once, not once per target
namespace milepost::kernels {
namespace {

// A thread's columns: whole cache lines, and reads long enough for the memory to go on by itself.
constexpr int64_t kGrain = 64;
// Sums of all rows in a core's first cache: for each of 64 rows kGrain columns.
constexpr int64_t kCachedSums = 64 * kGrain;

}  // namespace
}  // namespace milepost::kernels
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/vector_product.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

// x . b, each of k elements: in order, as memory is read best, in a few sums so that no addition
// waits for the one before.
template <typename T>
HWY_INLINE float InnerProduct(const T* x, const T* b, int64_t k) {
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  VF sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  int64_t i = 0;
  for (; i + 4 * lanes <= k; i += 4 * lanes) {
    sum0 = hn::MulAdd(LoadF(d, x + i), LoadF(d, b + i), sum0);
    sum1 = hn::MulAdd(LoadF(d, x + i + lanes), LoadF(d, b + i + lanes), sum1);
    sum2 = hn::MulAdd(LoadF(d, x + i + 2 * lanes), LoadF(d, b + i + 2 * lanes), sum2);
    sum3 = hn::MulAdd(LoadF(d, x + i + 3 * lanes), LoadF(d, b + i + 3 * lanes), sum3);
  }
  ForVectors(k - i, [&](int64_t at, int64_t n) MP_SIMD {
    sum0 = hn::MulAdd(LoadUpTo(d, x + i + at, n), LoadUpTo(d, b + i + at, n), sum0);
  });
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
}

// InnerProduct of kRows rows, x_row apart, and kColumns columns, k apart, bit for bit: its four
// sums one after the other, so that all products' parts of one are in registers.
template <int kRows, int kColumns, typename T>
HWY_INLINE void InnerProducts(const T* x, int64_t x_row, const T* b, int64_t k, float* y,
                              int64_t y_row) {
  constexpr int kSums = 4;
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  const int64_t whole = k / (kSums * lanes) * (kSums * lanes);
  VF sums[kSums][kRows][kColumns];
  const auto add = [&](int64_t at, int64_t n, VF(&sum)[kRows][kColumns]) MP_SIMD {
    VF row[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) row[r] = LoadUpTo(d, x + r * x_row + at, n);
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      const VF column = LoadUpTo(d, b + c * k + at, n);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r][c] = hn::MulAdd(row[r], column, sum[r][c]);
    }
  };
  for (int s = 0; s < kSums; ++s) {
    VF sum[kRows][kColumns];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) sum[r][c] = hn::Zero(d);
    }
    for (int64_t i = s * lanes; i < whole; i += kSums * lanes) add(i, lanes, sum);
    if (s == 0) {
      ForVectors(k - whole, [&](int64_t at, int64_t n) MP_SIMD { add(whole + at, n, sum); });
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) sums[s][r][c] = sum[r][c];
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      const VF all =
          hn::Add(hn::Add(sums[0][r][c], sums[1][r][c]), hn::Add(sums[2][r][c], sums[3][r][c]));
      y[r * y_row + c] = hn::GetLane(hn::SumOfLanes(d, all));
    }
  }
}

// All rows' columns [j, j + kColumns), without bias.
template <int kColumns, typename T>
HWY_INLINE void ColumnsOfRows(const VectorProductArgs<T>& a, int64_t j, float* y, int64_t y_row) {
  const T* b = a.b + j * a.k;
  int64_t r = 0;
  for (; r + 4 <= a.rows; r += 4) {
    InnerProducts<4, kColumns>(a.x + r * a.x_row, a.x_row, b, a.k, y + r * y_row + j, y_row);
  }
  for (; r + 2 <= a.rows; r += 2) {
    InnerProducts<2, kColumns>(a.x + r * a.x_row, a.x_row, b, a.k, y + r * y_row + j, y_row);
  }
  if (r < a.rows) {
    InnerProducts<1, kColumns>(a.x + r * a.x_row, a.x_row, b, a.k, y + r * y_row + j, y_row);
  }
}

// Columns [first, last), of a B that is stored by columns.
template <typename T>
HWY_INLINE void ByColumns(const VectorProductArgs<T>& a, int64_t first, int64_t last, float* y,
                          int64_t y_row) {
  int64_t j = first;
  if (a.rows == 1) {
    for (; j < last; ++j) y[j] = InnerProduct(a.x, a.b + j * a.k, a.k);
  }
  for (; j + 4 <= last; j += 4) ColumnsOfRows<4>(a, j, y, y_row);
  for (; j < last; ++j) ColumnsOfRows<1>(a, j, y, y_row);
  for (int64_t r = 0; r < a.rows; ++r) {
    for (j = first; j < last; ++j) {
      y[r * y_row + j] += a.bias == nullptr ? 0.0F : ToFloat(a.bias[j]);
    }
  }
}

// Of kRows rows: y[first, last) += the next kSteps rows of B, times x.
template <int kRows, int kSteps, typename T>
HWY_INLINE void AddSteps(const T* x, int64_t x_row, const T* b, int64_t b_row, int64_t first,
                         int64_t last, float* y, int64_t y_row) {
  const DF d;
  VF factor[kRows][kSteps];
#pragma GCC unroll 2
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < kSteps; ++i) factor[r][i] = hn::Set(d, ToFloat(x[r * x_row + i]));
  }
  ForVectors(last - first, [&](int64_t at, int64_t n) MP_SIMD {
    VF sum[kRows];
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r) sum[r] = LoadUpTo(d, y + r * y_row + first + at, n);
#pragma GCC unroll 8
    for (int i = 0; i < kSteps; ++i) {
      const VF step = LoadUpTo(d, b + i * b_row + first + at, n);
#pragma GCC unroll 2
      for (int r = 0; r < kRows; ++r) sum[r] = hn::MulAdd(factor[r][i], step, sum[r]);
    }
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r) StoreUpTo(sum[r], d, y + r * y_row + first + at, n);
  });
}

// Of all rows.
template <int kSteps, typename T>
HWY_INLINE void AddStepsToRows(const VectorProductArgs<T>& a, int64_t step, int64_t first,
                               int64_t last, float* y, int64_t y_row) {
  const T* x = a.x + step;
  const T* b = a.b + step * a.n;
  int64_t r = 0;
  for (; r + 2 <= a.rows; r += 2) {
    AddSteps<2, kSteps>(x + r * a.x_row, a.x_row, b, a.n, first, last, y + r * y_row, y_row);
  }
  if (r < a.rows) AddSteps<1, kSteps>(x + r * a.x_row, 0, b, a.n, first, last, y + r * y_row, 0);
}

template <typename T>
HWY_INLINE void ByRows(const VectorProductArgs<T>& a, int64_t first, int64_t last, float* y,
                       int64_t y_row) {
  constexpr int kSteps = 8;
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t j = first; j < last; ++j) {
      y[r * y_row + j] = a.bias == nullptr ? 0.0F : ToFloat(a.bias[j]);
    }
  }
  // Of several rows as many columns at a time as a core's first cache holds, with those of B.
  const int64_t cached = std::max(kGrain, kCachedSums / a.rows / kGrain * kGrain);
  const int64_t wide = a.rows == 1 ? last - first : cached;
  for (int64_t begin = first; begin < last; begin += wide) {
    const int64_t end = std::min(last, begin + wide);
    int64_t i = 0;
    for (; i + kSteps <= a.k; i += kSteps) AddStepsToRows<kSteps>(a, i, begin, end, y, y_row);
    for (; i < a.k; ++i) AddStepsToRows<1>(a, i, begin, end, y, y_row);
  }
}

// Columns [first, last) of all rows. `sums`: fp32, sums_row apart. `y`: null: they are the result.
template <typename T>
HWY_INLINE void Columns(const VectorProductArgs<T>& a, int64_t first, int64_t last, float* sums,
                        int64_t sums_row, T* y) {
  a.transpose_b ? ByColumns(a, first, last, sums, sums_row)
                : ByRows(a, first, last, sums, sums_row);
  if (y == nullptr) return;
  const DF d;
  for (int64_t r = 0; r < a.rows; ++r) {
    ForVectors(last - first, [&](int64_t at, int64_t n) MP_SIMD {
      StoreUpTo(LoadUpTo(d, sums + r * sums_row + first + at, n), d, y + r * a.y_row + first + at,
                n);
    });
  }
}

}  // namespace

void ColumnsF32(const VectorProductArgs<float>& args, int64_t first, int64_t last, float* sums,
                int64_t sums_row, float* y) {
  Columns(args, first, last, sums, sums_row, y);
}
void ColumnsBf16(const VectorProductArgs<bf16>& args, int64_t first, int64_t last, float* sums,
                 int64_t sums_row, bf16* y) {
  Columns(args, first, last, sums, sums_row, y);
}
void ColumnsF16(const VectorProductArgs<f16>& args, int64_t first, int64_t last, float* sums,
                int64_t sums_row, f16* y) {
  Columns(args, first, last, sums, sums_row, y);
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(ColumnsF32);
HWY_EXPORT(ColumnsBf16);
HWY_EXPORT(ColumnsF16);

namespace {

// `y`: null: the sums are the result.
template <typename T, typename Run>
void Split(Run run, const VectorProductArgs<T>& args, float* sums, int64_t sums_row, T* y) {
  ParallelFor(0, args.n, kGrain,
              [&](int64_t first, int64_t last) { run(args, first, last, sums, sums_row, y); });
}

}  // namespace

size_t VectorProductWorkspaceBytes(int64_t rows, int64_t n) {
  return (static_cast<size_t>(rows * n) * sizeof(float) + 63) / 64 * 64;
}

template <>
void VectorProduct(const VectorProductArgs<float>& args, float* y, void*) {
  Split<float>(HWY_DYNAMIC_DISPATCH(ColumnsF32), args, y, args.y_row, nullptr);
}
template <>
void VectorProduct(const VectorProductArgs<bf16>& args, bf16* y, void* workspace) {
  Split(HWY_DYNAMIC_DISPATCH(ColumnsBf16), args, static_cast<float*>(workspace), args.n, y);
}
template <>
void VectorProduct(const VectorProductArgs<bf16>& args, float* y, void*) {
  Split<bf16>(HWY_DYNAMIC_DISPATCH(ColumnsBf16), args, y, args.y_row, nullptr);
}
template <>
void VectorProduct(const VectorProductArgs<f16>& args, f16* y, void* workspace) {
  Split(HWY_DYNAMIC_DISPATCH(ColumnsF16), args, static_cast<float*>(workspace), args.n, y);
}
template <>
void VectorProduct(const VectorProductArgs<f16>& args, float* y, void*) {
  Split<f16>(HWY_DYNAMIC_DISPATCH(ColumnsF16), args, y, args.y_row, nullptr);
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
