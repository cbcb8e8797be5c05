#include "engine/kernels/cpu/random.h"

#include <algorithm>
#include <cmath>

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

void UniformGroup(uint64_t group, std::array<uint32_t, 2> key, VF bound, float* out) {
  const DF d;
  alignas(64) uint32_t words[64];
  RandomGroup(group, 0, key, words);
  for (int64_t i = 0; i < 64; i += hn::Lanes(d)) {
    const VF unit = UnitInterval(d, hn::LoadU(DU32(), words + i));
    hn::StoreU(hn::Mul(hn::Sub(hn::Add(unit, unit), hn::Set(d, 1.0f)), bound), d, out + i);
  }
}

// Elements from `first` on, of groups of 64 that group(number, values) makes.
template <typename Group>
void FillByGroups(float* out, int64_t n, uint64_t first, Group group) {
  alignas(64) float values[64];
  for (int64_t done = 0; done < n;) {
    const uint64_t element = first + done;
    const int64_t skip = element % 64;
    const int64_t use = std::min<int64_t>(64 - skip, n - done);
    group(element / 64, values);
    std::copy(values + skip, values + skip + use, out + done);
    done += use;
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
  FillByGroups(out, n, first_element, [&](uint64_t group, float* values) MP_SIMD {
    NormalGroup(group, key, hn::Set(d, mean), hn::Set(d, stddev), values);
  });
}

void UniformRange(float* out, int64_t n, float bound, uint64_t seed, uint64_t stream,
                  uint64_t first_element) {
  const DF d;
  const auto key = PhiloxKey(seed, stream);
  FillByGroups(out, n, first_element, [&](uint64_t group, float* values) MP_SIMD {
    UniformGroup(group, key, hn::Set(d, bound), values);
  });
}

void RoundRangeAtRandom(const float* in, int64_t n, const RoundingParams& params, bf16* out) {
  const DF d;
  const DU32 du;
  const DU16 d16;
  const auto key = PhiloxKey(params.seed, params.stream);
  alignas(64) uint32_t words[64];
  alignas(64) float values[64];
  alignas(64) uint16_t rounded[64];
  for (int64_t done = 0; done < n;) {
    const uint64_t element = params.first_element + done;
    const int64_t skip = element % 64;
    const int64_t use = std::min<int64_t>(64 - skip, n - done);
    RandomGroup(element / 64, params.step, key, words);
    std::fill(values, values + 64, 0.0f);
    std::copy(in + done, in + done + use, values + skip);
    for (int64_t i = 0; i < 64; i += hn::Lanes(d)) {
      // A uniform number below 2^16, added below the bits that are kept, carries as often as what
      // is cut off is large.
      const VF value = hn::Load(d, values + i);
      const VU32 noise = hn::ShiftRight<16>(hn::Load(du, words + i));
      const VU32 bits = hn::ShiftRight<16>(hn::Add(hn::BitCast(du, value), noise));
      const auto random = hn::DemoteTo(d16, hn::BitCast(DI32(), bits));
      const auto finite = hn::Lt(hn::Abs(value), hn::Set(d, HUGE_VALF));
      const VU32 keep =
          hn::IfThenElse(hn::RebindMask(du, finite), hn::Set(du, 0xffffu), hn::Zero(du));
      const auto mask = hn::DemoteTo(d16, hn::BitCast(DI32(), keep));
      const auto nearest = RoundToBf16(value);
      hn::Store(hn::Or(hn::And(mask, random), hn::AndNot(mask, nearest)), d16, rounded + i);
    }
    for (int64_t i = 0; i < use; ++i) out[done + i].bits = rounded[skip + i];
    done += use;
  }
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(DropoutMultipliersImpl);
HWY_EXPORT(NormalRange);
HWY_EXPORT(UniformRange);
HWY_EXPORT(RoundRangeAtRandom);

void RoundToBf16AtRandom(const float* in, int64_t n, const RoundingParams& params, bf16* out) {
  HWY_DYNAMIC_DISPATCH(RoundRangeAtRandom)(in, n, params, out);
}

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

void UniformInit(float* out, int64_t n, float bound, uint64_t seed, uint64_t stream,
                 uint64_t first_element) {
  const auto run = HWY_DYNAMIC_DISPATCH(UniformRange);
  ParallelFor(0, n, 4096, [=](int64_t begin, int64_t end) {
    run(out + begin, end - begin, bound, seed, stream, first_element + begin);
  });
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
