// Numbers of 16 bits. Storage only: arithmetic is fp32.
//
//   bf16 h = ToBf16(1.5f);
//   float f = ToFloat(h);
#ifndef MILEPOST_ENGINE_DTYPE_HALF_H_
#define MILEPOST_ENGINE_DTYPE_HALF_H_

#include <bit>
#include <cstdint>

#include "engine/dtype/dtype.h"

namespace milepost {

// The upper half of an IEEE binary32. Plain storage: no arithmetic of its own.
struct bf16 {
  uint16_t bits;
};
static_assert(sizeof(bf16) == 2);

// IEEE binary16: 5 bits of exponent, 10 of mantissa. Plain storage.
struct f16 {
  uint16_t bits;
};
static_assert(sizeof(f16) == 2);

// Of float, bf16, f16 and fp8.h's.
template <typename T>
inline constexpr DType kDTypeOf = DType::kF32;
template <>
inline constexpr DType kDTypeOf<bf16> = DType::kBf16;
template <>
inline constexpr DType kDTypeOf<f16> = DType::kF16;

constexpr float ToFloat(float value) { return value; }
constexpr float ToFloat(bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

constexpr float ToFloat(f16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1fu;
  const uint32_t mantissa = value.bits & 0x3ffu;
  if (exponent == 0) {  // zero, or a multiple of 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  const uint32_t wide = exponent == 0x1fu ? 0xffu : exponent + 112;
  return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
}

// Round to nearest, ties to even; a NaN stays a (quiet) NaN.
constexpr bf16 ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

// The same; from 65520 on infinite, below 2^-14 in steps of 2^-24.
constexpr f16 ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return {static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu))};
  }
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};
  if (magnitude < 0x38800000u) {
    // Adding 1/2 leaves the multiple of 2^-24, rounded, in the low bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23);
  return {static_cast<uint16_t>(sign | rounded >> 13)};
}

template <typename T>
constexpr T FromFloat(float value);
template <>
constexpr float FromFloat<float>(float value) {
  return value;
}
template <>
constexpr bf16 FromFloat<bf16>(float value) {
  return ToBf16(value);
}
template <>
constexpr f16 FromFloat<f16>(float value) {
  return ToF16(value);
}

}  // namespace milepost

#endif  // MILEPOST_ENGINE_DTYPE_HALF_H_
