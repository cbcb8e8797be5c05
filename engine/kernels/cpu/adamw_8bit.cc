#include "engine/kernels/cpu/adamw_8bit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/adamw_8bit.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

using DU8 = hn::Rebind<uint8_t, DF>;
using VI32 = hn::Vec<DI32>;
constexpr int64_t kN = kQuantizedBlock;

// x[kN] from its codes.
void Dequantize(const uint8_t* codes, float scale, const float* table, float* x) {
  const DF d;
  const VF factor = hn::Set(d, scale);
  for (int64_t i = 0; i < kN; i += hn::Lanes(d)) {
    const VI32 index = hn::PromoteTo(DI32(), hn::LoadU(DU8(), codes + i));
    hn::StoreU(hn::Mul(hn::GatherIndex(d, table, index), factor), d, x + i);
  }
}

// The number of the table's middles below x / scale: the nearest code; `least` where x is above 0.
// `middles` has 256 entries, the last one infinite.
void Quantize(const float* x, float scale, const float* middles, int32_t least, uint8_t* codes) {
  const DF d;
  const DI32 di;
  const VF zero = hn::Zero(d);
  const VF divisor = hn::Set(d, scale > 0 ? scale : 1.0f);
  for (int64_t i = 0; i < kN; i += hn::Lanes(d)) {
    const VF value = hn::LoadU(d, x + i);
    const VF ratio = hn::Div(value, divisor);
    VI32 code = hn::Zero(di);
    for (int32_t half = 128; half >= 1; half /= 2) {
      const VF middle = hn::GatherIndex(d, middles, hn::Add(code, hn::Set(di, half - 1)));
      const auto above = hn::RebindMask(di, hn::Gt(ratio, middle));
      code = hn::Add(code, hn::IfThenElseZero(above, hn::Set(di, half)));
    }
    const auto positive = hn::RebindMask(di, hn::Gt(value, zero));
    code = hn::IfThenElse(positive, hn::Max(code, hn::Set(di, least)), code);
    hn::StoreU(hn::DemoteTo(DU8(), code), DU8(), codes + i);
  }
}

float LargestMagnitude(const float* x) {
  const DF d;
  VF largest = hn::Zero(d);
  for (int64_t i = 0; i < kN; i += hn::Lanes(d)) {
    largest = hn::Max(largest, hn::Abs(hn::LoadU(d, x + i)));
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

}  // namespace

// One whole block. p, m and v are updated; m[kN] and v[kN] are fp32.
void MomentsAndStep(const AdamWParams& a, float* p, float* m, float* v, const float* g) {
  const DF d;
  const double correction1 = 1.0 - std::pow(double{a.beta1}, static_cast<double>(a.step));
  const double correction2 = 1.0 - std::pow(double{a.beta2}, static_cast<double>(a.step));
  const VF beta1 = hn::Set(d, a.beta1), rest1 = hn::Set(d, 1.0f - a.beta1);
  const VF beta2 = hn::Set(d, a.beta2), rest2 = hn::Set(d, 1.0f - a.beta2);
  const VF root2 = hn::Set(d, static_cast<float>(1.0 / std::sqrt(correction2)));
  const VF step = hn::Set(d, static_cast<float>(a.learning_rate / correction1));
  const VF shrink = hn::Set(d, static_cast<float>(1.0 - double{a.learning_rate} * a.weight_decay));
  const VF scale = hn::Set(d, a.gradient_scale), epsilon = hn::Set(d, a.epsilon);
  for (int64_t i = 0; i < kN; i += hn::Lanes(d)) {
    const VF grad = hn::Mul(hn::LoadU(d, g + i), scale);
    const VF new_m = hn::MulAdd(beta1, hn::LoadU(d, m + i), hn::Mul(rest1, grad));
    const VF new_v = hn::MulAdd(beta2, hn::LoadU(d, v + i), hn::Mul(rest2, hn::Mul(grad, grad)));
    const VF denominator = hn::MulAdd(hn::Sqrt(new_v), root2, epsilon);
    const VF decayed = hn::Mul(hn::LoadU(d, p + i), shrink);
    hn::StoreU(new_m, d, m + i);
    hn::StoreU(new_v, d, v + i);
    hn::StoreU(hn::NegMulAdd(step, hn::Div(new_m, denominator), decayed), d, p + i);
  }
}

void DequantizeBlock(const uint8_t* codes, float scale, const float* table, float* x) {
  Dequantize(codes, scale, table, x);
}

// Returns the block's scale.
float QuantizeBlock(const float* x, const float* middles, int32_t least, uint8_t* codes) {
  const float scale = LargestMagnitude(x);
  Quantize(x, scale, middles, least, codes);
  return scale;
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(MomentsAndStep);
HWY_EXPORT(DequantizeBlock);
HWY_EXPORT(QuantizeBlock);

namespace {

constexpr int64_t kN = kQuantizedBlock;
constexpr int64_t kGrainBlocks = 16;

std::array<float, 256> MakeCodes(bool with_sign) {
  std::vector<double> codes = {0, 1};
  for (int e = 0; e < 7; ++e) {
    const int parts = 1 << (with_sign ? e : e + 1);
    for (int i = 0; i < parts; ++i) {
      const double middle = (0.1 + 0.9 * (i + 0.5) / parts) * std::pow(10.0, e - 6);
      codes.push_back(middle);
      if (with_sign) codes.push_back(-middle);
    }
  }
  std::sort(codes.begin(), codes.end());
  std::array<float, 256> table;
  std::copy(codes.begin(), codes.end(), table.begin());
  return table;
}

// Where the nearest code changes.
std::array<float, 256> Middles(const std::array<float, 256>& codes) {
  std::array<float, 256> middles;
  for (size_t i = 0; i + 1 < codes.size(); ++i) {
    middles[i] = static_cast<float>((double{codes[i]} + codes[i + 1]) / 2);
  }
  middles.back() = std::numeric_limits<float>::infinity();
  return middles;
}

const std::array<float, 256>& SignedMiddles() {
  static const std::array<float, 256> middles = Middles(SignedCodes());
  return middles;
}
const std::array<float, 256>& UnsignedMiddles() {
  static const std::array<float, 256> middles = Middles(UnsignedCodes());
  return middles;
}

// One block of `count` elements; what is missing of a short one is zero.
struct Block {
  void Load(int64_t count, const float* from_p, const float* from_g, const QuantizedMoments& s) {
    std::fill_n(std::copy_n(from_p, count, p), kN - count, 0.0f);
    std::fill_n(std::copy_n(from_g, count, g), kN - count, 0.0f);
    std::fill_n(std::copy_n(s.m, count, m_codes), kN - count, uint8_t{0});
    std::fill_n(std::copy_n(s.v, count, v_codes), kN - count, uint8_t{0});
  }
  // The elements beyond `count` must not show in the scale.
  void Cut(int64_t count) {
    std::fill(m + count, m + kN, 0.0f);
    std::fill(v + count, v + kN, 0.0f);
  }

  alignas(64) float p[kN], g[kN], m[kN], v[kN];
  uint8_t m_codes[kN], v_codes[kN];
};

template <typename T>
void CopyTo(const float* from, int64_t count, T* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = FromFloat<T>(from[i]);
}

template <typename T>
void RunBlock(const AdamWParams& params, int64_t count, float* p, const QuantizedMoments& s,
              const float* g, T* copy, Block& block) {
  block.Load(count, p, g, s);
  const auto dequantize = HWY_DYNAMIC_DISPATCH(DequantizeBlock);
  const auto quantize = HWY_DYNAMIC_DISPATCH(QuantizeBlock);
  dequantize(block.m_codes, *s.m_scale, SignedCodes().data(), block.m);
  dequantize(block.v_codes, *s.v_scale, UnsignedCodes().data(), block.v);
  HWY_DYNAMIC_DISPATCH(MomentsAndStep)(params, block.p, block.m, block.v, block.g);
  block.Cut(count);
  *s.m_scale = quantize(block.m, SignedMiddles().data(), 0, block.m_codes);
  *s.v_scale = quantize(block.v, UnsignedMiddles().data(), 1, block.v_codes);
  std::copy_n(block.p, count, p);
  std::copy_n(block.m_codes, count, s.m);
  std::copy_n(block.v_codes, count, s.v);
  if (copy != nullptr) CopyTo(block.p, count, copy);
}

template <typename T>
void Run(const AdamWParams& params, int64_t n, float* p, const QuantizedMoments& s, const float* g,
         T* copy) {
  const int64_t blocks = (n + kN - 1) / kN;
  ParallelFor(0, blocks, kGrainBlocks, [&](int64_t first, int64_t last) {
    Block block;
    for (int64_t b = first; b < last; ++b) {
      const int64_t at = b * kN;
      const QuantizedMoments here = {s.m + at, s.m_scale + b, s.v + at, s.v_scale + b};
      RunBlock(params, std::min(kN, n - at), p + at, here, g + at,
               copy == nullptr ? nullptr : copy + at, block);
    }
  });
}

}  // namespace

const std::array<float, 256>& SignedCodes() {
  static const std::array<float, 256> codes = MakeCodes(true);
  return codes;
}
const std::array<float, 256>& UnsignedCodes() {
  static const std::array<float, 256> codes = MakeCodes(false);
  return codes;
}

template <>
void AdamW8Bit(const AdamWParams& params, int64_t n, float* p, const QuantizedMoments& state,
               const float* g, float* copy) {
  Run(params, n, p, state, g, copy);
}
template <>
void AdamW8Bit(const AdamWParams& params, int64_t n, float* p, const QuantizedMoments& state,
               const float* g, bf16* copy) {
  Run(params, n, p, state, g, copy);
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
