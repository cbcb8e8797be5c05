#include "engine/optim/sgd/sgd_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_optimizer.h"

namespace milepost::optim::cpu {
namespace {

template <typename T>
void SgdUpdate(const CpuUpdate<T>& u) {
  kernels::Sgd<T>({.learning_rate = u.LearningRate(),
                   .momentum = u.step.momentum,
                   .weight_decay = u.WeightDecay(),
                   .gradient_scale = u.step.clip_factor},
                  u.n, u.master, u.states[0], u.gradient, u.copy);
}

}  // namespace

constinit const CpuOptimizer kSgd = MP_CPU_OPTIMIZER(SgdUpdate);

}  // namespace milepost::optim::cpu
