#include "engine/kernels/cpu/random.h"

#include <algorithm>

#include "engine/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/random.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

// (0, 1]: the upper 24 bits, plus one.
HWY_INLINE VF UnitInterval(DF d, VU32 words) {
  const auto upper = hn::BitCast(DI32(), hn::ShiftRight<8>(words));
  return hn::Mul(hn::Add(hn::ConvertTo(d, upper), hn::Set(d, 1.0f)),
                 hn::Set(d, 1.0f / 16777216.0f));
}

// Normal values of one group of 64. Box-Muller pairs element e of the group's first half with
// e + 32; each pair has its own two random words.
void NormalGroup(uint64_t group, std::array<uint32_t, 2> key, VF mean, VF stddev, float* out) {
  const DF d;
  alignas(64) uint32_t words[64];
  RandomGroup(group, 0, key, words);
  for (int64_t i = 0; i < 32; i += hn::Lanes(d)) {
    const VF u1 = UnitInterval(d, hn::LoadU(DU32(), words + i));
    const VF u2 = UnitInterval(d, hn::LoadU(DU32(), words + 32 + i));
    const VF radius = hn::Sqrt(hn::Mul(hn::Set(d, -2.0f), hn::Log(d, u1)));
    const VF angle = hn::Mul(hn::Set(d, 6.283185307f), u2);
    hn::StoreU(hn::MulAdd(hn::Mul(radius, hn::Cos(d, angle)), stddev, mean), d, out + i);
    hn::StoreU(hn::MulAdd(hn::Mul(radius, hn::Sin(d, angle)), stddev, mean), d, out + 32 + i);
  }
}

}  // namespace

void DropoutMultipliersImpl(const DropoutParams& params, uint64_t offset, int64_t count,
                            float* out) {
  DropoutRow(params, offset, count, out);
}

void NormalRange(float* out, int64_t n, float mean, float stddev, uint64_t seed, uint64_t stream,
                 uint64_t first_element) {
  const DF d;
  const auto key = PhiloxKey(seed, stream);
  alignas(64) float values[64];
  for (int64_t done = 0; done < n;) {
    const uint64_t element = first_element + done;
    const int64_t skip = element % 64;
    const int64_t use = std::min<int64_t>(64 - skip, n - done);
    NormalGroup(element / 64, key, hn::Set(d, mean), hn::Set(d, stddev), values);
    std::copy(values + skip, values + skip + use, out + done);
    done += use;
  }
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(DropoutMultipliersImpl);
HWY_EXPORT(NormalRange);

void DropoutMultipliers(const DropoutParams& params, uint64_t offset, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(DropoutMultipliersImpl)(params, offset, count, out);
}

void NormalInit(float* out, int64_t n, float mean, float stddev, uint64_t seed, uint64_t stream,
                uint64_t first_element) {
  const auto run = HWY_DYNAMIC_DISPATCH(NormalRange);
  ParallelFor(0, n, 4096, [=](int64_t begin, int64_t end) {
    run(out + begin, end - begin, mean, stddev, seed, stream, first_element + begin);
  });
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
