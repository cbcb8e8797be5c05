// Numbers of 4 bits for weights that are only read (Dettmers et al., "QLoRA", 2023): NormalFloat4.
// A matrix is cut into blocks of 64 elements, in row-major order. Each block has a scale, its
// largest magnitude, and each element the nearest of 16 numbers between -1 and 1, times the scale;
// halfway between two, the smaller.
//
//   std::vector<uint8_t> packed(Nf4Bytes(n));   // codes, then scales: Nf4ScalesAt(n)
//   Nf4Value(12);                               // 0.4407...
//
// The 16 numbers are the paper's (appendix E), and codes lie as bitsandbytes has them: two to a
// byte, the first in its upper half. Making and reading whole tensors: ops/nf4/nf4_cpu_kernel.h.
#ifndef MILEPOST_ENGINE_DTYPE_NF4_H_
#define MILEPOST_ENGINE_DTYPE_NF4_H_

#include <array>
#include <cstdint>

namespace milepost {

inline constexpr int64_t kNf4Block = 64;
// Codes fill whole multiples of so many bytes, so that what follows is aligned.
inline constexpr int64_t kNf4Alignment = 32;

constexpr int64_t Nf4Blocks(int64_t elements) { return (elements + kNf4Block - 1) / kNf4Block; }
// Where the scales of so many elements begin: fp32, one for each block.
constexpr int64_t Nf4ScalesAt(int64_t elements) {
  return (elements + 2 * kNf4Alignment - 1) / (2 * kNf4Alignment) * kNf4Alignment;
}
constexpr int64_t Nf4Bytes(int64_t elements) {
  return Nf4ScalesAt(elements) + Nf4Blocks(elements) * static_cast<int64_t>(sizeof(float));
}

// What a code of 0 to 15 stands for.
constexpr float Nf4Value(int code) {
  constexpr float kValues[] = {
      -1.0f,
      -0.6961928009986877f,
      -0.5250730514526367f,
      -0.39491748809814453f,
      -0.28444138169288635f,
      -0.18477343022823334f,
      -0.09105003625154495f,
      0.0f,
      0.07958029955625534f,
      0.16093020141124725f,
      0.24611230194568634f,
      0.33791524171829224f,
      0.44070982933044434f,
      0.5626170039176941f,
      0.7229568362236023f,
      1.0f,
  };
  return kValues[code];
}

// Of all codes, for tables.
constexpr std::array<float, 16> Nf4Values() {
  std::array<float, 16> values = {};
  for (int code = 0; code < 16; ++code) values[code] = Nf4Value(code);
  return values;
}

inline constexpr int kNf4Zero = 7;

}  // namespace milepost

#endif  // MILEPOST_ENGINE_DTYPE_NF4_H_
