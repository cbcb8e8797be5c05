#include "engine/ops/parameter_average/parameter_average_cpu_kernel.h"

#include <algorithm>
#include <bit>

#include "engine/kernels/cpu/flat_ranges.h"
#include "engine/ops/parameter_average/parameter_average_contract.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ops/parameter_average/parameter_average_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

template <typename T>
void AverageRange(const T* parameters, int64_t n, float weight, float* averages) {
  const DF d;
  const VF part = hn::Set(d, weight);
  ForVectors(n, [&](int64_t i, int64_t count) MP_SIMD {
    const VF old = LoadUpTo(d, averages + i, count);
    const VF apart = hn::Sub(LoadUpTo(d, parameters + i, count), old);
    StoreUpTo(hn::Add(old, hn::Mul(part, apart)), d, averages + i, count);
  });
}

}  // namespace

void AverageRangeF32(const float* parameters, int64_t n, float weight, float* averages) {
  AverageRange(parameters, n, weight, averages);
}
void AverageRangeBf16(const bf16* parameters, int64_t n, float weight, float* averages) {
  AverageRange(parameters, n, weight, averages);
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(AverageRangeF32);
HWY_EXPORT(AverageRangeBf16);

namespace {

template <typename Run, typename T>
void RunAverages(Run run, const T* parameters, int64_t n, float weight, float* averages) {
  ParallelFor(0, n, kFlatGrain, [&](int64_t first, int64_t last) {
    run(parameters + first, last - first, weight, averages + first);
  });
}

template <typename Exchange>
void ExchangeBits(int64_t n, bf16* parameters, float* averages, const Exchange& exchange) {
  ParallelFor(0, n, kFlatGrain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const ExchangedBits bits = exchange(parameters[i].bits, std::bit_cast<uint32_t>(averages[i]));
      parameters[i].bits = bits.parameter;
      averages[i] = std::bit_cast<float>(bits.average);
    }
  });
}

}  // namespace

template <>
void AddToAverages(const float* parameters, int64_t n, float weight, float* averages) {
  RunAverages(HWY_DYNAMIC_DISPATCH(AverageRangeF32), parameters, n, weight, averages);
}
template <>
void AddToAverages(const bf16* parameters, int64_t n, float weight, float* averages) {
  RunAverages(HWY_DYNAMIC_DISPATCH(AverageRangeBf16), parameters, n, weight, averages);
}

void SwapAverages(int64_t n, float* parameters, float* averages) {
  ParallelFor(0, n, kFlatGrain, [&](int64_t first, int64_t last) {
    std::swap_ranges(parameters + first, parameters + last, averages + first);
  });
}

void TakeAverages(int64_t n, bf16* parameters, float* averages) {
  ExchangeBits(n, parameters, averages, TakeAverage);
}
void ReturnParameters(int64_t n, bf16* parameters, float* averages) {
  ExchangeBits(n, parameters, averages, ReturnParameter);
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
