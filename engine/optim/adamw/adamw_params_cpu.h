// AdamW's numbers of a step and a segment, which its relatives take too.
#ifndef MILEPOST_ENGINE_OPTIM_ADAMW_ADAMW_PARAMS_CPU_H_
#define MILEPOST_ENGINE_OPTIM_ADAMW_ADAMW_PARAMS_CPU_H_

#include "engine/optim/adamw/adamw_contract.h"
#include "engine/runtime/cpu/cpu_optimizer.h"

namespace milepost::optim::cpu {

template <typename T>
kernels::AdamWParams AdamWParamsOf(const CpuUpdate<T>& u) {
  return {.learning_rate = u.LearningRate(),
          .beta1 = u.step.beta1,
          .beta2 = u.step.beta2,
          .epsilon = u.step.epsilon,
          .weight_decay = u.WeightDecay(),
          .gradient_scale = u.step.clip_factor,
          .step = u.step.update};
}

}  // namespace milepost::optim::cpu

#endif  // MILEPOST_ENGINE_OPTIM_ADAMW_ADAMW_PARAMS_CPU_H_
