// Per-tensor delayed scaling for 8-bit products: which number a tensor is multiplied by before it
// is rounded to E4M3 or E5M2, from the largest magnitudes (amax) of the steps before, so that no
// pass over the tensor is needed first (Micikevicius et al., "FP8 Formats for Deep Learning",
// 2022).
//
//   Fp8Scale scale(Fp8Format::kE4M3);
//   ... quantise with scale.value(); the product's result is divided by both operands' scales
//   scale.Update(amax);                       // once a step, of the tensor before scaling
//
// The rule. The last 16 steps' amax are kept. value = 2^e with the largest integer e, |e| <= 126,
// for which value x (largest kept amax) is at most the format's largest number. A power of two, so
// that scaling itself rounds nothing. Before any amax and while all kept are 0, value stays. An
// amax that is not finite counts as none and is not kept: the step that made it is skipped, not
// learned from. Larger numbers than any kept saturate.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_FP8_SCALING_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_FP8_SCALING_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace milepost::kernels::cuda {

enum class Fp8Format : uint8_t {
  kE4M3,  // forward: weights and activations; no infinities
  kE5M2,  // backward: gradients
};
constexpr float LargestOf(Fp8Format format) {
  return format == Fp8Format::kE4M3 ? 448.0f : 57344.0f;
}

inline constexpr int kAmaxHistory = 16;

class Fp8Scale {
 public:
  explicit Fp8Scale(Fp8Format format) : format_(format) {}

  float value() const { return value_; }

  // `amax`: at least 0.
  void Update(float amax) {
    if (!std::isfinite(amax)) return;
    history_[next_] = amax;
    next_ = (next_ + 1) % kAmaxHistory;
    const float largest = *std::max_element(history_.begin(), history_.end());
    if (largest > 0) value_ = PowerOfTwoBelow(LargestOf(format_), largest);
  }

 private:
  static constexpr int kMaxExponent = 126;

  // In integers and fractions, where a division would round: limit = f 2^i, amax = g 2^j with f and
  // g in [1/2, 1).
  static float PowerOfTwoBelow(float limit, float amax) {
    int i = 0, j = 0;
    const float f = std::frexp(limit, &i), g = std::frexp(amax, &j);
    const int e = i - j - (g > f ? 1 : 0);
    return std::ldexp(1.0f, std::clamp(e, -kMaxExponent, kMaxExponent));
  }

  Fp8Format format_;
  float value_ = 1;
  std::array<float, kAmaxHistory> history_ = {};
  int next_ = 0;
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_FP8_SCALING_H_
