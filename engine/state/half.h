// Converts 16-bit floating point to float and back, one element at a time. Pure and thread-safe.
#ifndef MILEPOST_ENGINE_STATE_HALF_H_
#define MILEPOST_ENGINE_STATE_HALF_H_

#include <bit>
#include <cstdint>

namespace milepost::state {

inline float Bf16ToF32(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// IEEE half precision, exact. NaNs keep the bits of their payload.
inline float F16ToF32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f;
  const uint32_t fraction = bits & 0x3ff;
  if (exponent == 0) {  // zero and subnormals: fraction * 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  const uint32_t wide = exponent == 0x1f ? 0xff : exponent + 127 - 15;
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

// Rounds to nearest, ties to even. A NaN stays a (quiet) NaN.
inline uint16_t F32ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Rounds in the same way. Values from 65520 on become infinite; values below 2^-14 have steps of
// 2^-24.
inline uint16_t F32ToF16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {
    return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  }
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000) {  // 1/2 more leaves the multiple of 2^-24, rounded, in the low bits
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000));
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1) - (uint32_t{112} << 23);
  return static_cast<uint16_t>(sign | rounded >> 13);
}

}  // namespace milepost::state

#endif  // MILEPOST_ENGINE_STATE_HALF_H_
