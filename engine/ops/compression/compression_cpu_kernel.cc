#include "engine/ops/compression/compression_cpu_kernel.h"

#include <cmath>
#include <limits>

#include "engine/kernels/cpu/parallel.h"
#include "engine/ops/compression/compression_contract.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ops/compression/compression_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {

double DotOfRows(const float* x, const float* y, int64_t n) {
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> df;
  const int64_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d), sum1 = sum0;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto x0 = hn::PromoteTo(d, hn::LoadU(df, x + i));
    const auto x1 = hn::PromoteTo(d, hn::LoadU(df, x + i + lanes));
    sum0 = hn::MulAdd(x0, hn::PromoteTo(d, hn::LoadU(df, y + i)), sum0);
    sum1 = hn::MulAdd(x1, hn::PromoteTo(d, hn::LoadU(df, y + i + lanes)), sum1);
  }
  double sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
  for (; i < n; ++i) sum += double{x[i]} * y[i];
  return sum;
}

void AddScaledRange(float factor, const float* x, int64_t n, float* out) {
  const DF d;
  const VF by = hn::Set(d, factor);
  ForVectors(n, [&](int64_t i, int64_t count) MP_SIMD {
    const VF scaled = hn::Mul(by, LoadUpTo(d, x + i, count));
    StoreUpTo(hn::Add(LoadUpTo(d, out + i, count), scaled), d, out + i, count);
  });
}

void ScaleRow(float factor, int64_t n, float* x) {
  const DF d;
  const VF by = hn::Set(d, factor);
  ForVectors(n, [&](int64_t i, int64_t count) MP_SIMD {
    StoreUpTo(hn::Mul(by, LoadUpTo(d, x + i, count)), d, x + i, count);
  });
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(DotOfRows);
HWY_EXPORT(AddScaledRange);
HWY_EXPORT(ScaleRow);

namespace {

constexpr int64_t kAddGrain = 16384;

double LengthOf(const float* row, int64_t n) {
  return std::sqrt(HWY_DYNAMIC_DISPATCH(DotOfRows)(row, row, n));
}

// Less what lies along the rows before it, which are orthonormal. Returns how long it is then.
double RemoveEarlier(int64_t index, int64_t n, const float* rows, float* row) {
  const auto dot = HWY_DYNAMIC_DISPATCH(DotOfRows);
  const auto add = HWY_DYNAMIC_DISPATCH(AddScaledRange);
  for (int pass = 0; pass < 2; ++pass) {
    for (int64_t i = 0; i < index; ++i) {
      const float* earlier = rows + i * n;
      add(static_cast<float>(-dot(earlier, row, n)), earlier, n, row);
    }
  }
  return LengthOf(row, n);
}

}  // namespace

void MakeOrthonormal(int64_t count, int64_t n, float* rows,
                     absl::FunctionRef<void(int64_t row, float* at)> draw) {
  for (int64_t i = 0; i < count; ++i) {
    float* row = rows + i * n;
    const double before = LengthOf(row, n);
    if (!std::isfinite(before)) continue;
    double length = RemoveEarlier(i, n, rows, row);
    if (length <= kDependent * before || length < std::numeric_limits<float>::min()) {
      draw(i, row);
      length = RemoveEarlier(i, n, rows, row);
    }
    HWY_DYNAMIC_DISPATCH(ScaleRow)(static_cast<float>(1 / length), n, row);
  }
}

void AddScaled(float factor, const float* x, int64_t n, float* out) {
  const auto run = HWY_DYNAMIC_DISPATCH(AddScaledRange);
  ParallelFor(0, n, kAddGrain, [&](int64_t first, int64_t last) {
    run(factor, x + first, last - first, out + first);
  });
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
