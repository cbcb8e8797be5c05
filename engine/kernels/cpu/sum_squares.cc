#include "engine/kernels/cpu/sum_squares.h"

#include <algorithm>

#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/sum_squares.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {

double SumSquaresBlock(const float* g, int64_t n) {
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> df;
  const int64_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d), sum1 = sum0;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto a = hn::PromoteTo(d, hn::LoadU(df, g + i));
    const auto b = hn::PromoteTo(d, hn::LoadU(df, g + i + lanes));
    sum0 = hn::MulAdd(a, a, sum0);
    sum1 = hn::MulAdd(b, b, sum1);
  }
  double sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
  for (; i < n; ++i) sum += double{g[i]} * g[i];
  return sum;
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(SumSquaresBlock);

namespace {

// block(at, count): of elements [at, at + count).
template <typename Block>
double SumBlocks(int64_t n, void* workspace, const Block& block) {
  double* sums = static_cast<double*>(workspace);
  const int64_t blocks = (n + kSquaresBlock - 1) / kSquaresBlock;
  ParallelFor(0, blocks, 8, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      sums[b] = block(b * kSquaresBlock, std::min(kSquaresBlock, n - b * kSquaresBlock));
    }
  });
  double sum = 0.0;
  for (int64_t b = 0; b < blocks; ++b) sum += sums[b];
  return sum;
}

}  // namespace

double SumSquares(const float* g, int64_t n, void* workspace) {
  const auto run = HWY_DYNAMIC_DISPATCH(SumSquaresBlock);
  return SumBlocks(n, workspace, [&](int64_t at, int64_t count) { return run(g + at, count); });
}

double SumSquares(const bf16* g, int64_t n, void* workspace) {
  const auto run = HWY_DYNAMIC_DISPATCH(SumSquaresBlock);
  return SumBlocks(n, workspace, [&](int64_t at, int64_t count) {
    float values[kSquaresBlock];
    CastToFloat(g + at, count, values);
    return run(values, count);
  });
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
