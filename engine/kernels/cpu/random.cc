#include "engine/kernels/cpu/random.h"

#include <algorithm>
#include <cmath>

#include "common/box_muller.h"
#include "engine/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/random.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

// (0, 1]: the upper 24 bits, plus one.
HWY_INLINE VF UnitInterval(DF d, VU32 words) {
  const auto upper = hn::BitCast(DI32(), hn::ShiftRight<8>(words));
  return hn::Mul(hn::Add(hn::ConvertTo(d, upper), hn::Set(d, 1.0f)), hn::Set(d, box_muller::kUnit));
}

// Of (0, 1].
HWY_INLINE VF LogOfUnit(DF d, VF u) {
  const DU32 du;
  const DI32 di;
  const VU32 bits = hn::BitCast(du, u);
  const auto exponent =
      hn::ShiftRight<23>(hn::BitCast(di, hn::Sub(bits, hn::Set(du, box_muller::kHalfRootBits))));
  const VU32 fraction = hn::Sub(bits, hn::ShiftLeft<23>(hn::BitCast(du, exponent)));
  const VF f = hn::Sub(hn::BitCast(d, fraction), hn::Set(d, 1.0f));
  const VF e = hn::ConvertTo(d, exponent);
  VF p = hn::Set(d, box_muller::kLogTerm7);
  p = hn::MulAdd(p, f, hn::Set(d, box_muller::kLogTerm6));
  p = hn::MulAdd(p, f, hn::Set(d, box_muller::kLogTerm5));
  p = hn::MulAdd(p, f, hn::Set(d, box_muller::kLogTerm4));
  p = hn::MulAdd(p, f, hn::Set(d, box_muller::kLogTerm3));
  p = hn::MulAdd(p, f, hn::Set(d, box_muller::kLogTerm2));
  p = hn::MulAdd(p, f, hn::Set(d, box_muller::kLogTerm1));
  p = hn::MulAdd(p, f, hn::Set(d, box_muller::kLogTerm0));
  const VF square = hn::Mul(f, f);
  const VF tail = hn::MulAdd(hn::Mul(square, f), p, hn::Mul(e, hn::Set(d, box_muller::kLog2Low)));
  const VF rest = hn::Add(hn::MulAdd(hn::Set(d, -0.5f), square, tail), f);
  return hn::MulAdd(e, hn::Set(d, box_muller::kLog2High), rest);
}

// Two normal values of a pair of words, of deviation 1.
HWY_INLINE void NormalPair(DF d, VU32 radius_word, VU32 angle_word, VF* cosine, VF* sine) {
  const DU32 du;
  const VF log = LogOfUnit(d, UnitInterval(d, radius_word));
  const VF radius = hn::Sqrt(hn::Mul(hn::Set(d, -2.0f), log));
  const VU32 turn = hn::Add(hn::ShiftRight<8>(angle_word), hn::Set(du, 1u));
  const VU32 quarter = hn::ShiftRight<22>(hn::Add(turn, hn::Set(du, box_muller::kQuarter / 2)));
  const auto steps = hn::BitCast(DI32(), hn::Sub(turn, hn::ShiftLeft<22>(quarter)));
  const VF x = hn::Mul(hn::ConvertTo(d, steps), hn::Set(d, box_muller::kStepAngle));
  const VF z = hn::Mul(x, x);
  VF s = hn::MulAdd(hn::Set(d, box_muller::kSinTerm2), z, hn::Set(d, box_muller::kSinTerm1));
  s = hn::MulAdd(s, z, hn::Set(d, box_muller::kSinTerm0));
  s = hn::MulAdd(s, hn::Mul(x, z), x);
  VF c = hn::MulAdd(hn::Set(d, box_muller::kCosTerm2), z, hn::Set(d, box_muller::kCosTerm1));
  c = hn::MulAdd(c, z, hn::Set(d, box_muller::kCosTerm0));
  c = hn::MulAdd(c, hn::Mul(z, z), hn::MulAdd(hn::Set(d, -0.5f), z, hn::Set(d, 1.0f)));
  const auto odd = hn::RebindMask(d, hn::Ne(hn::And(quarter, hn::Set(du, 1u)), hn::Zero(du)));
  // Bit 1 of the quarter, and of the next one, to the sign.
  const VU32 sine_sign = hn::ShiftLeft<31>(hn::ShiftRight<1>(quarter));
  const VU32 cosine_sign = hn::ShiftLeft<31>(hn::ShiftRight<1>(hn::Add(quarter, hn::Set(du, 1u))));
  *cosine = hn::Mul(radius, hn::Xor(hn::IfThenElse(odd, s, c), hn::BitCast(d, cosine_sign)));
  *sine = hn::Mul(radius, hn::Xor(hn::IfThenElse(odd, c, s), hn::BitCast(d, sine_sign)));
}

// Normal values of one group of 64. Box-Muller pairs element e of the group's first half with
// e + 32; each pair has its own two random words.
void NormalGroup(uint64_t group, std::array<uint32_t, 2> key, VF mean, VF stddev, float* out) {
  const DF d;
  const DU32 du;
  alignas(64) uint32_t words[64];
  RandomGroup(group, 0, key, words);
  for (int64_t i = 0; i < 32; i += hn::Lanes(d)) {
    VF cosine, sine;
    NormalPair(d, hn::LoadU(du, words + i), hn::LoadU(du, words + 32 + i), &cosine, &sine);
    hn::StoreU(hn::MulAdd(cosine, stddev, mean), d, out + i);
    hn::StoreU(hn::MulAdd(sine, stddev, mean), d, out + 32 + i);
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
