// Highway helpers shared by the kernels' per-target code: typed loads and stores that compute in
// fp32, a fast exp, Philox. Compiled once per SIMD target; include it after hwy/foreach_target.h.
//
// Vectors are fp32 and Lanes(d) <= 16 wide. A kernel walks a row with LoadF/StoreF and finishes it
// with LoadN/StoreN (n < Lanes(d); the missing lanes read as 0).

#if defined(MILEPOST_ENGINE_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MILEPOST_ENGINE_KERNELS_CPU_SIMD_INL_H_
#undef MILEPOST_ENGINE_KERNELS_CPU_SIMD_INL_H_
#else
#define MILEPOST_ENGINE_KERNELS_CPU_SIMD_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "common/philox.h"
#include "engine/dtype/half.h"
#include "engine/kernels/cpu/random.h"
#include "hwy/highway.h"

// On a lambda that runs once per vector: it must become part of its loop.
#undef MP_SIMD
#define MP_SIMD HWY_ATTR __attribute__((always_inline))

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;
using DU32 = hn::RebindToUnsigned<DF>;
using VU32 = hn::Vec<DU32>;
using DI32 = hn::RebindToSigned<DF>;
using DU16 = hn::Rebind<uint16_t, DF>;
constexpr int64_t kMaxLanes = 16;

// An activation and its derivative.
struct Activated {
  VF value;
  VF slope;
};

HWY_INLINE VF LoadF(DF d, const float* p) { return hn::LoadU(d, p); }
HWY_INLINE VF LoadF(DF d, const bf16* p) {
  const auto bits = hn::LoadU(DU16(), reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(DU32(), bits)));
}
// Highway converts halves correctly only where the CPU does.
HWY_INLINE VF LoadF(DF d, const f16* p) {
#if HWY_TARGET <= HWY_AVX2
  const hn::Rebind<hwy::float16_t, DF> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
#else
  alignas(64) float lanes[kMaxLanes];
  for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = ToFloat(p[i]);
  return hn::Load(d, lanes);
#endif
}

HWY_INLINE void StoreF(VF v, DF d, float* p) { hn::StoreU(v, d, p); }
HWY_INLINE hn::Vec<DU16> RoundToBf16(VF v) {
  const DU32 du;
  const auto bits = hn::BitCast(du, v);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(du, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu))));
  const auto quiet = hn::Or(upper, hn::Set(du, 0x40u));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(v));
  return hn::DemoteTo(DU16(), hn::BitCast(DI32(), hn::IfThenElse(is_nan, quiet, rounded)));
}
HWY_INLINE void StoreF(VF v, DF d, bf16* p) {
  hn::StoreU(RoundToBf16(v), DU16(), reinterpret_cast<uint16_t*>(p));
}
HWY_INLINE void StoreF(VF v, DF d, f16* p) {
#if HWY_TARGET <= HWY_AVX2
  (void)d;
  const hn::Rebind<hwy::float16_t, DF> d16;
  hn::StoreU(hn::DemoteTo(d16, v), d16, reinterpret_cast<hwy::float16_t*>(p));
#else
  alignas(64) float lanes[kMaxLanes];
  hn::Store(v, d, lanes);
  for (size_t i = 0; i < hn::Lanes(d); ++i) p[i] = ToF16(lanes[i]);
#endif
}

template <typename T>
HWY_INLINE VF LoadN(DF d, const T* p, int64_t n) {
  T lanes[kMaxLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return LoadF(d, lanes);
}
template <typename T>
HWY_INLINE void StoreN(VF v, DF d, T* p, int64_t n) {
  T lanes[kMaxLanes];
  StoreF(v, d, lanes);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

// step(i, count) for every vector of [0, n): count == Lanes except, possibly, at the end. The
// compiler sees the full count as a constant.
template <typename Step>
HWY_INLINE void ForVectors(int64_t n, const Step& step) {
  const int64_t lanes = hn::Lanes(DF());
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) step(i, lanes);
  if (i < n) step(i, n - i);
}
template <typename T>
HWY_INLINE VF LoadUpTo(DF d, const T* p, int64_t n) {
  return n == static_cast<int64_t>(hn::Lanes(d)) ? LoadF(d, p) : LoadN(d, p, n);
}
template <typename T>
HWY_INLINE void StoreUpTo(VF v, DF d, T* p, int64_t n) {
  n == static_cast<int64_t>(hn::Lanes(d)) ? StoreF(v, d, p) : StoreN(v, d, p, n);
}

// The larger of 0 and x; a NaN stays one.
HWY_INLINE VF Relu(DF d, VF x) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  return hn::IfThenElse(hn::Le(x, hn::Zero(d)), hn::Zero(d), x);
#else
  return hn::Max(hn::Zero(d), x);  // x86's max returns its second operand where either is a NaN
#endif
}

// Adding this to a float of magnitude below 2^22 leaves the nearest integer in the low bits.
constexpr float kRoundingBias = 12582912.0f;  // 1.5 * 2^23

// 2^x for x <= 127, relative error below 4e-7; 0 below -126 (also for -inf); a NaN stays one.
HWY_INLINE VF FastExp2(DF d, VF x) {
  const DU32 du;
  const VF bias = hn::Set(d, kRoundingBias);
  const VF biased = hn::Add(x, bias);
  const VF f = hn::Sub(x, hn::Sub(biased, bias));
  VF q = hn::Set(d, 1.338130445e-03f);
  q = hn::MulAdd(q, f, hn::Set(d, 9.666370449e-03f));
  q = hn::MulAdd(q, f, hn::Set(d, 5.550381011e-02f));
  q = hn::MulAdd(q, f, hn::Set(d, 2.402234901e-01f));
  q = hn::MulAdd(q, f, hn::Set(d, 6.931471806e-01f));
  q = hn::MulAdd(q, f, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(du, biased));
  const VF power = hn::BitCast(d, hn::Add(hn::BitCast(du, q), exponent));
  return hn::IfThenElse(hn::Ge(x, hn::Set(d, -126.0f)), power, Relu(d, x));
}

// e^x, relative error below 4e-7; 0 below -87, clamped above 88; a NaN stays one.
HWY_INLINE VF FastExp(DF d, VF x) {
  const DU32 du;
  const VF bias = hn::Set(d, kRoundingBias);
  const VF clamped = hn::Min(x, hn::Set(d, 88.0f));  // loses a NaN: the select below has x itself
  const VF biased = hn::MulAdd(clamped, hn::Set(d, 1.44269504f), bias);
  const VF whole = hn::Sub(biased, bias);
  VF r = hn::NegMulAdd(whole, hn::Set(d, 0.693359375f), clamped);
  r = hn::NegMulAdd(whole, hn::Set(d, -2.12194440e-4f), r);
  VF q = hn::Set(d, 8.363179053e-03f);
  q = hn::MulAdd(q, r, hn::Set(d, 4.187568634e-02f));
  q = hn::MulAdd(q, r, hn::Set(d, 1.666657699e-01f));
  q = hn::MulAdd(q, r, hn::Set(d, 4.999937189e-01f));
  q = hn::MulAdd(q, r, hn::Set(d, 1.0f));
  q = hn::MulAdd(q, r, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(du, biased));
  const VF power = hn::BitCast(d, hn::Add(hn::BitCast(du, q), exponent));
  return hn::IfThenElse(hn::Ge(x, hn::Set(d, -87.0f)), power, Relu(d, x));
}

// High and low halves of the 64-bit products of 32-bit lanes with a constant.
HWY_INLINE void MulWide(VU32 a, uint32_t multiplier, VU32* high, VU32* low) {
  const DU32 du;
#if HWY_TARGET == HWY_SCALAR
  const uint64_t product = uint64_t{hn::GetLane(a)} * multiplier;
  *high = hn::Set(du, static_cast<uint32_t>(product >> 32));
  *low = hn::Set(du, static_cast<uint32_t>(product));
#else
  const hn::RepartitionToWide<DU32> du64;
  const VU32 m = hn::Set(du, multiplier);
  const auto even = hn::BitCast(du, hn::MulEven(a, m));
  const auto odd =
      hn::BitCast(du, hn::MulEven(hn::BitCast(du, hn::ShiftRight<32>(hn::BitCast(du64, a))), m));
  *low = hn::OddEven(hn::BitCast(du, hn::ShiftLeft<32>(hn::BitCast(du64, odd))), even);
  *high = hn::OddEven(odd, hn::BitCast(du, hn::ShiftRight<32>(hn::BitCast(du64, even))));
#endif
}

// Philox4x32 of Lanes counters at once, in place.
HWY_INLINE void PhiloxLanes(VU32 counter[4], std::array<uint32_t, 2> key) {
  const DU32 du;
  for (int round = 0; round < kPhiloxRounds; ++round) {
    VU32 high0, low0, high1, low1;
    MulWide(counter[0], kPhiloxMultiplier0, &high0, &low0);
    MulWide(counter[2], kPhiloxMultiplier1, &high1, &low1);
    counter[0] = hn::Xor(high1, hn::Xor(counter[1], hn::Set(du, key[0])));
    counter[1] = low1;
    counter[2] = hn::Xor(high0, hn::Xor(counter[3], hn::Set(du, key[1])));
    counter[3] = low0;
    key = {key[0] + kPhiloxWeyl0, key[1] + kPhiloxWeyl1};
  }
}

// Random words of the 64 elements [64 * group, 64 * group + 64). Element e of a stream is word
// (e % 64) / 16 of the counter {16 * (e / 64) + e % 16, step}: 16 neighbours are 16 counters,
// whatever the vector width.
HWY_INLINE void RandomGroup(uint64_t group, uint64_t step, std::array<uint32_t, 2> key,
                            uint32_t* out) {
  const DU32 du;
  const uint64_t base = group * 16;  // its low word does not wrap within a group
  for (int64_t lane = 0; lane < 16; lane += hn::Lanes(du)) {
    VU32 c[4] = {hn::Iota(du, static_cast<uint32_t>(base + lane)),
                 hn::Set(du, static_cast<uint32_t>(base >> 32)),
                 hn::Set(du, static_cast<uint32_t>(step)),
                 hn::Set(du, static_cast<uint32_t>(step >> 32))};
    PhiloxLanes(c, key);
    for (int word = 0; word < 4; ++word) hn::StoreU(c[word], du, out + 16 * word + lane);
  }
}

// Multipliers of dropout, 0 or 1 / (1 - p), for `count` elements of a call from `offset` on.
HWY_INLINE void DropoutRow(const DropoutParams& params, uint64_t offset, int64_t count,
                           float* out) {
  const DF d;
  const auto key = PhiloxKey(params.seed, params.stream);
  const uint32_t threshold = static_cast<uint32_t>(static_cast<double>(params.p) * 4294967296.0);
  const float keep = 1.0f / (1.0f - params.p);
  alignas(64) uint32_t words[64];
  for (int64_t done = 0; done < count;) {
    const uint64_t element = params.Element(offset + done);
    const int64_t skip = element % 64;
    const int64_t use = HWY_MIN(64 - skip, params.Neighbours(offset + done, count - done));
    RandomGroup(element / 64, params.step, key, words);
    if (use == 64) {
      for (int64_t i = 0; i < 64; i += hn::Lanes(d)) {
        const auto dropped = hn::Lt(hn::LoadU(DU32(), words + i), hn::Set(DU32(), threshold));
        hn::StoreU(hn::IfThenZeroElse(hn::RebindMask(d, dropped), hn::Set(d, keep)), d,
                   out + done + i);
      }
    } else {
      for (int64_t i = 0; i < use; ++i) out[done + i] = words[skip + i] >= threshold ? keep : 0.0f;
    }
    done += use;
  }
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MILEPOST_ENGINE_KERNELS_CPU_SIMD_INL_H_
