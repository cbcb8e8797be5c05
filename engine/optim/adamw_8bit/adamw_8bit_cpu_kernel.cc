#include "engine/optim/adamw_8bit/adamw_8bit_cpu_kernel.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/optim/adamw_8bit/adamw_8bit_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

#ifndef MILEPOST_ENGINE_OPTIM_ADAMW_8BIT_ADAMW_8BIT_CPU_KERNEL_ONCE_
#define MILEPOST_ENGINE_OPTIM_ADAMW_8BIT_ADAMW_8BIT_CPU_KERNEL_ONCE_
namespace milepost::kernels {
namespace {

struct StepFactors {
  float beta1, beta2, root2, step, shrink, gradient_scale, epsilon;
};

}  // namespace
}  // namespace milepost::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

using DU8 = hn::Rebind<uint8_t, DF>;
constexpr int64_t kN = kQuantizedBlock;

// The codes of |x| / scale for one vector of magnitudes in [0, 1], counted from 0 for 0, by
// arithmetic: gathers from a table of their borders take ten times as long. In decade e the
// borders are 0.1 + 0.9 i / parts, times 10^(e - 6); where decades meet they are the middles.
class Magnitudes {
 public:
  explicit Magnitudes(const CodeBorders& borders) : b_(borders) {}

  HWY_INLINE VF Index(VF x) const {
    const DF d;
    VF factor = hn::Set(d, b_.factor[0]), parts = hn::Set(d, b_.parts[0]);
    for (int e = 1; e < 7; ++e) {
      const auto above = hn::Gt(x, hn::Set(d, b_.lower[e]));
      factor = hn::IfThenElse(above, hn::Set(d, b_.factor[e]), factor);
      parts = hn::IfThenElse(above, hn::Set(d, b_.parts[e]), parts);
    }
    const VF one = hn::Set(d, 1.0f);
    const VF last = hn::Sub(parts, one);
    const VF t = hn::Sub(hn::Mul(x, factor), hn::Mul(parts, hn::Set(d, 1.0f / 9)));
    const VF i = hn::Min(hn::Max(hn::Sub(hn::Ceil(t), one), hn::Zero(d)), last);
    // Before decade e come 0 and the codes of lower decades.
    const VF index = hn::Add(hn::Sub(parts, hn::Set(d, b_.first_parts - 1)), i);
    const VF topped = hn::IfThenElse(hn::Gt(x, hn::Set(d, b_.one)), hn::Set(d, b_.most), index);
    return hn::IfThenElseZero(hn::Gt(x, hn::Set(d, b_.lower[0])), topped);
  }

 private:
  const CodeBorders& b_;
};

void Quantize(const float* x, float scale, const CodeBorders& borders, uint8_t* codes) {
  const DF d;
  const DI32 di;
  const Magnitudes magnitudes(borders);
  const VF divisor = hn::Set(d, scale > 0 ? scale : 1.0f);
  for (int64_t i = 0; i < kN; i += hn::Lanes(d)) {
    const VF value = hn::LoadU(d, x + i);
    VF index = magnitudes.Index(hn::Div(hn::Abs(value), divisor));
    if (borders.with_sign) {  // 0 is code 127; there is no -1
      const VF below = hn::Neg(hn::Min(index, hn::Set(d, 127.0f)));
      const auto negative = hn::Lt(value, hn::Zero(d));
      index = hn::Add(hn::Set(d, 127.0f), hn::IfThenElse(negative, below, index));
    } else {
      const VF least = hn::IfThenElseZero(hn::Gt(value, hn::Zero(d)), hn::Set(d, 1.0f));
      index = hn::Max(index, least);
    }
    hn::StoreU(hn::DemoteTo(DU8(), hn::ConvertTo(di, index)), DU8(), codes + i);
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
void MomentsAndStep(const StepFactors& a, float* p, float* m, float* v, const float* g) {
  const DF d;
  const VF beta1 = hn::Set(d, a.beta1), rest1 = hn::Set(d, 1.0f - a.beta1);
  const VF beta2 = hn::Set(d, a.beta2), rest2 = hn::Set(d, 1.0f - a.beta2);
  const VF root2 = hn::Set(d, a.root2), step = hn::Set(d, a.step), shrink = hn::Set(d, a.shrink);
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

// Returns the block's scale.
float QuantizeBlock(const float* x, const CodeBorders& borders, uint8_t* codes) {
  const float scale = LargestMagnitude(x);
  Quantize(x, scale, borders, codes);
  return scale;
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(MomentsAndStep);
HWY_EXPORT(QuantizeBlock);

namespace {

constexpr int64_t kN = kQuantizedBlock;
constexpr int64_t kGrainBlocks = 16;

StepFactors FactorsOf(const AdamWParams& a) {
  const double correction1 = 1.0 - std::pow(double{a.beta1}, static_cast<double>(a.step));
  const double correction2 = 1.0 - std::pow(double{a.beta2}, static_cast<double>(a.step));
  return {.beta1 = a.beta1,
          .beta2 = a.beta2,
          .root2 = static_cast<float>(1.0 / std::sqrt(correction2)),
          .step = static_cast<float>(a.learning_rate / correction1),
          .shrink = static_cast<float>(1.0 - double{a.learning_rate} * a.weight_decay),
          .gradient_scale = a.gradient_scale,
          .epsilon = a.epsilon};
}

void Dequantize(const uint8_t* codes, float scale, const std::array<float, 256>& table, float* x) {
  for (int64_t i = 0; i < kN; ++i) x[i] = table[codes[i]] * scale;
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

void CopyTo(const float* from, int64_t count, float* to) { std::copy_n(from, count, to); }
void CopyTo(const float* from, int64_t count, bf16* to) { CastToBf16(from, count, to); }
void CopyTo(const float* from, int64_t count, f16* to) { CastToF16(from, count, to); }

template <typename T>
void RunBlock(const StepFactors& factors, int64_t count, float* p, const QuantizedMoments& s,
              const float* g, T* copy, Block& block) {
  block.Load(count, p, g, s);
  Dequantize(block.m_codes, *s.m_scale, SignedCodes(), block.m);
  Dequantize(block.v_codes, *s.v_scale, UnsignedCodes(), block.v);
  HWY_DYNAMIC_DISPATCH(MomentsAndStep)(factors, block.p, block.m, block.v, block.g);
  block.Cut(count);
  const auto quantize = HWY_DYNAMIC_DISPATCH(QuantizeBlock);
  *s.m_scale = quantize(block.m, SignedBorders(), block.m_codes);
  *s.v_scale = quantize(block.v, UnsignedBorders(), block.v_codes);
  std::copy_n(block.p, count, p);
  std::copy_n(block.m_codes, count, s.m);
  std::copy_n(block.v_codes, count, s.v);
  if (copy != nullptr) CopyTo(block.p, count, copy);
}

template <typename T>
void Run(const AdamWParams& params, int64_t n, float* p, const QuantizedMoments& s, const float* g,
         T* copy) {
  const int64_t blocks = (n + kN - 1) / kN;
  const StepFactors factors = FactorsOf(params);
  ParallelFor(0, blocks, kGrainBlocks, [&](int64_t first, int64_t last) {
    Block block;
    for (int64_t b = first; b < last; ++b) {
      const int64_t at = b * kN;
      const QuantizedMoments here = {s.m + at, s.m_scale + b, s.v + at, s.v_scale + b};
      RunBlock(factors, std::min(kN, n - at), p + at, here, g + at,
               copy == nullptr ? nullptr : copy + at, block);
    }
  });
}

}  // namespace

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
template <>
void AdamW8Bit(const AdamWParams& params, int64_t n, float* p, const QuantizedMoments& state,
               const float* g, f16* copy) {
  Run(params, n, p, state, g, copy);
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
