// What Adan's kernels are given, on both devices.
#ifndef MILEPOST_ENGINE_OPTIM_ADAN_ADAN_CONTRACT_H_
#define MILEPOST_ENGINE_OPTIM_ADAN_ADAN_CONTRACT_H_

#include <cmath>
#include <cstdint>

namespace milepost::kernels {

// Decays are those of the authors' program: 1 minus the paper's.
struct AdanParams {
  float learning_rate = 0.0f;
  float beta1 = 0.98f;  // of m
  float beta2 = 0.92f;  // of v
  float beta3 = 0.99f;  // of n
  float epsilon = 1e-8f;
  float weight_decay = 0.0f;    // decoupled, by division: 0 for tensors without decay
  float gradient_scale = 1.0f;  // multiplies g: the clip factor, and 1 / loss scale
  int64_t step = 1;             // 1 for the first update: bias correction
};

// What both devices make of them on the host, in fp64.
struct AdanFactors {
  explicit AdanFactors(const AdanParams& a) {
    const auto left = [&](float beta) {
      return 1.0 - std::pow(double{beta}, static_cast<double>(a.step));
    };
    rate = static_cast<float>(a.learning_rate / left(a.beta1));
    second = static_cast<float>(double{a.beta2} * left(a.beta1) / left(a.beta2));
    root3 = static_cast<float>(1.0 / std::sqrt(left(a.beta3)));
    shrink = static_cast<float>(1.0 / (1.0 + double{a.learning_rate} * a.weight_decay));
    past = a.step == 1 ? 0.0f : 1.0f;
  }

  float rate = 0;    // over the bias correction of m
  float second = 0;  // of v beside m
  float root3 = 1;   // 1 / sqrt(1 - beta3^t)
  float shrink = 1;  // decay
  float past = 1;    // 0: there is no gradient before this one
};

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPTIM_ADAN_ADAN_CONTRACT_H_
