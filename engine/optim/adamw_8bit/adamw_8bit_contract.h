// The numbers that moments of 8 bits stand for, and how they lie: the same on both devices.
#ifndef MILEPOST_ENGINE_OPTIM_ADAMW_8BIT_ADAMW_8BIT_CONTRACT_H_
#define MILEPOST_ENGINE_OPTIM_ADAMW_8BIT_ADAMW_8BIT_CONTRACT_H_

#include <array>
#include <cstdint>

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

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPTIM_ADAMW_8BIT_ADAMW_8BIT_CONTRACT_H_
