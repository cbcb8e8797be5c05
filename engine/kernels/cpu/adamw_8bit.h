// AdamW whose m and v are held in 8 bits (Dettmers et al., "8-bit Optimizers via Block-wise
// Quantization", 2022): a code per element, and per block of 256 elements the largest magnitude in
// it. The codes stand for the numbers of the paper's dynamic data type, in [-1, 1] (m) and [0, 1]
// (v), times that magnitude.
//
//   AdamW8Bit<bf16>(params, n, p, {m, m_scale, v, v_scale}, g, parameter);
//
// Parallel; results do not depend on the thread count, nor on how a tensor is cut at multiples of
// the block.
#ifndef MILEPOST_ENGINE_KERNELS_CPU_ADAMW_8BIT_H_
#define MILEPOST_ENGINE_KERNELS_CPU_ADAMW_8BIT_H_

#include <array>
#include <cstdint>

#include "engine/dtype/half.h"
#include "engine/kernels/cpu/optimizer.h"

namespace milepost::kernels {

inline constexpr int64_t kQuantizedBlock = 256;  // elements

// The 256 numbers that codes stand for, ascending. Signed: for e = 0 to 6 the middles of 2^e equal
// parts of [0.1, 1], times 10^(e - 6), either sign; 0 and 1. Unsigned: 2^(e + 1) parts.
const std::array<float, 256>& SignedCodes();
const std::array<float, 256>& UnsignedCodes();

// Where codes change, as arithmetic needs it. The code of x, a magnitude in [0, 1], counted from 0
// for 0: that of 1 above `one`, 0 up to lower[0], else with the last decade e whose `lower` is
// below x: parts[e] - parts[0] + 1 + i, where i = ceil(x factor[e] - parts[e] / 9) - 1 is cut to
// [0, parts[e] - 1].
struct CodeBorders {
  bool with_sign;
  float factor[7];    // 10^(6 - e) parts / 0.9
  float parts[7];     // of decade e
  float lower[7];     // magnitudes above this are in decade e, or a higher one
  float first_parts;  // parts[0]
  float one;          // magnitudes above this take the code of 1
  float most;         // its index
};
const CodeBorders& SignedBorders();
const CodeBorders& UnsignedBorders();

// Element 0 is the first of a block.
struct QuantizedMoments {
  uint8_t* m;
  float* m_scale;  // one per block
  uint8_t* v;
  float* v_scale;
};

// As AdamW (optimizer.h), in fp32 from the m and v that the codes stand for; p moves by the new m
// and v, which are then rounded to the nearest code. A v that is not 0 never becomes 0, which would
// let a later m of its element divide by almost nothing: it takes the least code above.
template <typename T>
void AdamW8Bit(const AdamWParams& params, int64_t n, float* p, const QuantizedMoments& state,
               const float* g, T* copy);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_KERNELS_CPU_ADAMW_8BIT_H_
