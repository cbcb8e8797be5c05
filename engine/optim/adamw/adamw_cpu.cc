#include "engine/optim/adamw/adamw_cpu_kernel.h"
#include "engine/optim/adamw/adamw_params_cpu.h"
#include "engine/runtime/cpu/cpu_optimizer.h"

namespace milepost::optim::cpu {
namespace {

template <typename T>
void AdamWUpdate(const CpuUpdate<T>& u) {
  kernels::AdamW<T>(AdamWParamsOf(u), u.n, u.master, u.states[0], u.states[1], u.gradient, u.copy);
}

}  // namespace

constinit const CpuOptimizer kAdamW = MP_CPU_OPTIMIZER(AdamWUpdate);

}  // namespace milepost::optim::cpu
