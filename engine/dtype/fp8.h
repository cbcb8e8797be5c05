// Numbers of 8 bits (Micikevicius et al., "FP8 Formats for Deep Learning", 2022). E4M3 has 4 bits
// of exponent and 3 of mantissa, up to 448 and no infinities; E5M2 has 5 and 2, up to 57344.
// Storage only: what products on a GPU may read.
//
//   e4m3 code = ToE4M3(1.3f);      // to nearest, ties to even; larger numbers: the largest
//   float f = ToFloat(code);       // 1.25; exact, also in bf16
#ifndef MILEPOST_ENGINE_DTYPE_FP8_H_
#define MILEPOST_ENGINE_DTYPE_FP8_H_

#include <bit>
#include <cstdint>

#include "engine/dtype/half.h"

namespace milepost {

struct e4m3 {
  uint8_t bits;
};
struct e5m2 {
  uint8_t bits;
};

inline constexpr float kLargestE4M3 = 448.0f;
inline constexpr float kLargestE5M2 = 57344.0f;
inline constexpr uint8_t kFp8NaN = 0x7f;  // in both

namespace fp8_internal {

// `mantissa` bits of it, exponents from 2^least on; below that multiples of 2^(least - mantissa).
constexpr uint8_t Encode(float value, int mantissa, int least, float largest) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint32_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) return kFp8NaN;
  float x = std::bit_cast<float>(magnitude);
  if (x > largest) x = largest;
  const int exponent = static_cast<int>(std::bit_cast<uint32_t>(x) >> 23) - 127;
  const int step = (exponent < least ? least : exponent) - mantissa;  // of 2: between neighbours
  // Adding 1.5 2^23 steps leaves the number of steps, rounded to even, in the low bits.
  const float magic = std::bit_cast<float>(static_cast<uint32_t>(step + 23 + 127) << 23) * 1.5f;
  const uint32_t steps = std::bit_cast<uint32_t>(x + magic) - std::bit_cast<uint32_t>(magic);
  // A count of steps that reaches the next exponent carries into it.
  const auto biased = static_cast<uint32_t>(step + mantissa - least);
  return static_cast<uint8_t>(sign | ((biased << mantissa) + steps));
}

constexpr float Decode(uint8_t code, int mantissa, int least) {
  const uint32_t magnitude = code & 0x7fu;
  const uint32_t exponent = magnitude >> mantissa;
  const uint32_t fraction = magnitude & ((1u << mantissa) - 1);
  const int step = least - mantissa + (exponent > 0 ? static_cast<int>(exponent) - 1 : 0);
  const uint32_t steps = fraction + (exponent > 0 ? 1u << mantissa : 0);
  const float unit = std::bit_cast<float>(static_cast<uint32_t>(step + 127) << 23);
  const float value = static_cast<float>(steps) * unit;
  return (code & 0x80u) != 0 ? -value : value;
}

}  // namespace fp8_internal

constexpr e4m3 ToE4M3(float value) { return {fp8_internal::Encode(value, 3, -6, kLargestE4M3)}; }
constexpr e5m2 ToE5M2(float value) { return {fp8_internal::Encode(value, 2, -14, kLargestE5M2)}; }
constexpr float ToFloat(e4m3 code) {
  if ((code.bits & 0x7fu) == 0x7fu) return std::bit_cast<float>(0x7fc00000u);
  return fp8_internal::Decode(code.bits, 3, -6);
}
constexpr float ToFloat(e5m2 code) {
  if ((code.bits & 0x7fu) > 0x7cu) return std::bit_cast<float>(0x7fc00000u);
  if ((code.bits & 0x7fu) == 0x7cu) {
    return std::bit_cast<float>(code.bits == 0x7cu ? 0x7f800000u : 0xff800000u);
  }
  return fp8_internal::Decode(code.bits, 2, -14);
}

template <>
inline constexpr DType kDTypeOf<e4m3> = DType::kE4M3;
template <>
inline constexpr DType kDTypeOf<e5m2> = DType::kE5M2;
template <>
constexpr e4m3 FromFloat<e4m3>(float value) {
  return ToE4M3(value);
}
template <>
constexpr e5m2 FromFloat<e5m2>(float value) {
  return ToE5M2(value);
}
template <typename Code>
inline constexpr float kLargestOf = kDTypeOf<Code> == DType::kE4M3 ? kLargestE4M3 : kLargestE5M2;

}  // namespace milepost

#endif  // MILEPOST_ENGINE_DTYPE_FP8_H_
