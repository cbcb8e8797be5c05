// GELU and its slope in fp64, for the reference of what has it within.
#ifndef MILEPOST_ENGINE_OPS_GELU_GELU_REFERENCE_H_
#define MILEPOST_ENGINE_OPS_GELU_GELU_REFERENCE_H_

#include <cmath>
#include <numbers>

namespace milepost::ops::reference {

inline const double kGeluScale = std::sqrt(2 / std::numbers::pi);
inline constexpr double kGeluCubic = 0.044715;

inline double Phi(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }
inline double TanhGelu(double x) {
  return 0.5 * x * (1 + std::tanh(kGeluScale * (x + kGeluCubic * x * x * x)));
}
inline double TanhGeluSlope(double x) {
  const double t = std::tanh(kGeluScale * (x + kGeluCubic * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kGeluScale * (1 + 3 * kGeluCubic * x * x);
}

}  // namespace milepost::ops::reference

#endif  // MILEPOST_ENGINE_OPS_GELU_GELU_REFERENCE_H_
