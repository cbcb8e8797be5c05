// What Lion's kernels are given, on both devices.
#ifndef MILEPOST_ENGINE_OPTIM_LION_LION_CONTRACT_H_
#define MILEPOST_ENGINE_OPTIM_LION_LION_CONTRACT_H_

#include <cstdint>

namespace milepost::kernels {

struct LionParams {
  float learning_rate = 0.0f;
  float beta1 = 0.9f;
  float beta2 = 0.99f;
  float weight_decay = 0.0f;  // decoupled
  float gradient_scale = 1.0f;
};

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPTIM_LION_LION_CONTRACT_H_
