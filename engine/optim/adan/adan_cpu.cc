#include "engine/optim/adan/adan_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_optimizer.h"

namespace milepost::optim::cpu {
namespace {

template <typename T>
void AdanUpdate(const CpuUpdate<T>& u) {
  const kernels::AdanParams params = {.learning_rate = u.LearningRate(),
                                      .beta1 = u.step.beta1,
                                      .beta2 = u.step.beta2,
                                      .beta3 = u.step.beta3,
                                      .epsilon = u.step.epsilon,
                                      .weight_decay = u.WeightDecay(),
                                      .gradient_scale = u.step.clip_factor,
                                      .step = u.step.update};
  kernels::Adan<T>(params, u.n, u.master, {u.states[0], u.states[1], u.states[2], u.states[3]},
                   u.gradient, u.copy);
}

}  // namespace

constinit const CpuOptimizer kAdan = MP_CPU_OPTIMIZER(AdanUpdate);

}  // namespace milepost::optim::cpu
