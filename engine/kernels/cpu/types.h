// Element types of the CPU kernels. A kernel is a template over float or bf16 and is defined for
// exactly these two.
//
//   bf16 h = ToBf16(1.5f);
//   float f = ToFloat(h);
#ifndef MILEPOST_ENGINE_KERNELS_CPU_TYPES_H_
#define MILEPOST_ENGINE_KERNELS_CPU_TYPES_H_

#include <bit>
#include <cstddef>
#include <cstdint>

namespace milepost::kernels {

// The upper half of an IEEE binary32. Plain storage: no arithmetic of its own.
struct bf16 {
  uint16_t bits;
};
static_assert(sizeof(bf16) == 2);

enum class DType : uint8_t { kF32, kBf16 };

constexpr size_t ByteSize(DType type) { return type == DType::kF32 ? 4 : 2; }

template <typename T>
inline constexpr DType kDTypeOf = DType::kF32;
template <>
inline constexpr DType kDTypeOf<bf16> = DType::kBf16;

constexpr float ToFloat(float value) { return value; }
constexpr float ToFloat(bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

// Round to nearest, ties to even; a NaN stays a (quiet) NaN.
constexpr bf16 ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
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

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_KERNELS_CPU_TYPES_H_
