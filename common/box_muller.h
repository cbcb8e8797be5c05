// What the kernels that draw normal numbers share, whatever they run on, so that their results have
// the same bits: coefficients, and how two random words become two numbers.
//
// Box and Muller, "A note on the generation of random normal deviates", 1958: of u and v, uniform
// in (0, 1], sqrt(-2 log u) cos(2 pi v) and sqrt(-2 log u) sin(2 pi v) are two normal numbers. u
// and v are the upper 24 bits of a word, plus one, times 2^-24.
//
//   log u = e log 2 + log(1 + f): u = 2^e (1 + f), and f from sqrt(1/2) - 1 to sqrt(2) - 1;
//           log(1 + f) = f - f^2 / 2 + f^3 (kLogTerm0 + kLogTerm1 f + ... + kLogTerm7 f^7)
//   v     = quarter / 4 + x / (2 pi): the quarter by integers, and x from -pi/4 to pi/4;
//           sin x = x + x^3 (kSinTerm0 + kSinTerm1 x^2 + kSinTerm2 x^4)
//           cos x = 1 - x^2 / 2 + x^4 (kCosTerm0 + kCosTerm1 x^2 + kCosTerm2 x^4)
//
// Coefficients are minimax: below 6e-9 of the result. Sums of products are written as fused
// multiply-adds. So nothing is left that one compiler would fuse and another would not.
#ifndef MILEPOST_COMMON_BOX_MULLER_H_
#define MILEPOST_COMMON_BOX_MULLER_H_

#include <cstdint>

namespace milepost::box_muller {

inline constexpr float kUnit = 1.0f / 16777216.0f;  // 2^-24

inline constexpr uint32_t kHalfRootBits = 0x3f3504f3;  // of sqrt(1/2)
inline constexpr float kLog2High = 0x1.62e4p-1f;       // times an exponent it is exact
inline constexpr float kLog2Low = 0x1.7f7d1cp-20f;
inline constexpr float kLogTerm0 = 0x1.555554p-2f;
inline constexpr float kLogTerm1 = -0x1.000226p-2f;
inline constexpr float kLogTerm2 = 0x1.99a00ep-3f;
inline constexpr float kLogTerm3 = -0x1.547282p-3f;
inline constexpr float kLogTerm4 = 0x1.22d9e6p-3f;
inline constexpr float kLogTerm5 = -0x1.0d8308p-3f;
inline constexpr float kLogTerm6 = 0x1.055ba2p-3f;
inline constexpr float kLogTerm7 = -0x1.38c072p-4f;

inline constexpr uint32_t kQuarter = 1u << 22;        // of the 2^24 steps of a turn
inline constexpr float kStepAngle = 0x1.921fb6p-22f;  // 2 pi / 2^24
inline constexpr float kSinTerm0 = -0x1.555546p-3f;
inline constexpr float kSinTerm1 = 0x1.110766p-7f;
inline constexpr float kSinTerm2 = -0x1.995048p-13f;
inline constexpr float kCosTerm0 = 0x1.55554ap-5f;
inline constexpr float kCosTerm1 = -0x1.6c0c9ep-10f;
inline constexpr float kCosTerm2 = 0x1.9a06c8p-16f;

}  // namespace milepost::box_muller

#endif  // MILEPOST_COMMON_BOX_MULLER_H_
