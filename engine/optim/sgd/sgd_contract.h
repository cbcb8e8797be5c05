// What SGD's kernels are given, on both devices.
#ifndef MILEPOST_ENGINE_OPTIM_SGD_SGD_CONTRACT_H_
#define MILEPOST_ENGINE_OPTIM_SGD_SGD_CONTRACT_H_

#include <cstdint>

namespace milepost::kernels {

struct SgdParams {
  float learning_rate = 0.0f;
  float momentum = 0.9f;
  float weight_decay = 0.0f;  // added to the gradient, as torch.optim.SGD does
  float gradient_scale = 1.0f;
};

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPTIM_SGD_SGD_CONTRACT_H_
