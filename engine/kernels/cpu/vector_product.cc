#include "engine/kernels/cpu/vector_product.h"

#include "engine/kernels/cpu/parallel.h"

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

// Columns [first, last), of a B that is stored by columns.
template <typename T>
HWY_INLINE void ByColumns(const VectorProductArgs<T>& a, int64_t first, int64_t last, float* y) {
  for (int64_t j = first; j < last; ++j) {
    const float bias = a.bias == nullptr ? 0.0F : ToFloat(a.bias[j]);
    y[j] = InnerProduct(a.x, a.b + j * a.k, a.k) + bias;
  }
}

// y[first, last) += the next kRows rows of B, times x.
template <int kRows, typename T>
HWY_INLINE void AddRows(const T* x, const T* b, int64_t row, int64_t first, int64_t last,
                        float* y) {
  const DF d;
  VF factor[kRows];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) factor[i] = hn::Set(d, ToFloat(x[i]));
  ForVectors(last - first, [&](int64_t at, int64_t n) MP_SIMD {
    VF sum = LoadUpTo(d, y + first + at, n);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      sum = hn::MulAdd(factor[i], LoadUpTo(d, b + i * row + first + at, n), sum);
    }
    StoreUpTo(sum, d, y + first + at, n);
  });
}

template <typename T>
HWY_INLINE void ByRows(const VectorProductArgs<T>& a, int64_t first, int64_t last, float* y) {
  constexpr int kRows = 8;
  for (int64_t j = first; j < last; ++j) y[j] = a.bias == nullptr ? 0.0F : ToFloat(a.bias[j]);
  int64_t i = 0;
  for (; i + kRows <= a.k; i += kRows) AddRows<kRows>(a.x + i, a.b + i * a.n, a.n, first, last, y);
  for (; i < a.k; ++i) AddRows<1>(a.x + i, a.b + i * a.n, a.n, first, last, y);
}

template <typename T>
HWY_INLINE void Columns(const VectorProductArgs<T>& a, int64_t first, int64_t last, float* sums,
                        T* y) {
  a.transpose_b ? ByColumns(a, first, last, sums) : ByRows(a, first, last, sums);
  if (y == nullptr) return;
  const DF d;
  ForVectors(last - first, [&](int64_t at, int64_t n) MP_SIMD {
    StoreUpTo(LoadUpTo(d, sums + first + at, n), d, y + first + at, n);
  });
}

}  // namespace

void ColumnsF32(const VectorProductArgs<float>& args, int64_t first, int64_t last, float* sums,
                float* y) {
  Columns(args, first, last, sums, y);
}
void ColumnsBf16(const VectorProductArgs<bf16>& args, int64_t first, int64_t last, float* sums,
                 bf16* y) {
  Columns(args, first, last, sums, y);
}
void ColumnsF16(const VectorProductArgs<f16>& args, int64_t first, int64_t last, float* sums,
                f16* y) {
  Columns(args, first, last, sums, y);
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(ColumnsF32);
HWY_EXPORT(ColumnsBf16);
HWY_EXPORT(ColumnsF16);

namespace {

// A thread's columns: whole cache lines, and reads long enough for the memory to go on by itself.
constexpr int64_t kGrain = 64;

// `y`: null: the sums are the result.
template <typename T, typename Run>
void Split(Run run, const VectorProductArgs<T>& args, float* sums, T* y) {
  ParallelFor(0, args.n, kGrain,
              [&](int64_t first, int64_t last) { run(args, first, last, sums, y); });
}

}  // namespace

size_t VectorProductWorkspaceBytes(int64_t n) {
  return (static_cast<size_t>(n) * sizeof(float) + 63) / 64 * 64;
}

template <>
void VectorProduct(const VectorProductArgs<float>& args, float* y, void*) {
  Split<float>(HWY_DYNAMIC_DISPATCH(ColumnsF32), args, y, nullptr);
}
template <>
void VectorProduct(const VectorProductArgs<bf16>& args, bf16* y, void* workspace) {
  Split(HWY_DYNAMIC_DISPATCH(ColumnsBf16), args, static_cast<float*>(workspace), y);
}
template <>
void VectorProduct(const VectorProductArgs<bf16>& args, float* y, void*) {
  Split<bf16>(HWY_DYNAMIC_DISPATCH(ColumnsBf16), args, y, nullptr);
}
template <>
void VectorProduct(const VectorProductArgs<f16>& args, f16* y, void* workspace) {
  Split(HWY_DYNAMIC_DISPATCH(ColumnsF16), args, static_cast<float*>(workspace), y);
}
template <>
void VectorProduct(const VectorProductArgs<f16>& args, float* y, void*) {
  Split<f16>(HWY_DYNAMIC_DISPATCH(ColumnsF16), args, y, nullptr);
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
