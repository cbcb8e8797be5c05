// What AdamW's kernels are given, on both devices.
#ifndef MILEPOST_ENGINE_OPTIM_ADAMW_ADAMW_CONTRACT_H_
#define MILEPOST_ENGINE_OPTIM_ADAMW_ADAMW_CONTRACT_H_

#include <cstdint>

namespace milepost::kernels {

struct AdamWParams {
  float learning_rate = 0.0f;
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float weight_decay = 0.0f;    // decoupled; 0 for tensors without decay: call once per segment
  float gradient_scale = 1.0f;  // multiplies g: the clip factor, and 1 / loss scale
  int64_t step = 1;             // 1 for the first update: bias correction
};

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPTIM_ADAMW_ADAMW_CONTRACT_H_
