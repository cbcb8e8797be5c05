#include "engine/optim/lion/lion_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_optimizer.h"

namespace milepost::optim::cpu {
namespace {

template <typename T>
void LionUpdate(const CpuUpdate<T>& u) {
  kernels::Lion<T>({.learning_rate = u.LearningRate(),
                    .beta1 = u.step.beta1,
                    .beta2 = u.step.beta2,
                    .weight_decay = u.WeightDecay(),
                    .gradient_scale = u.step.clip_factor},
                   u.n, u.master, u.states[0], u.gradient, u.copy);
}

}  // namespace

constinit const CpuOptimizer kLion = MP_CPU_OPTIMIZER(LionUpdate);

}  // namespace milepost::optim::cpu
