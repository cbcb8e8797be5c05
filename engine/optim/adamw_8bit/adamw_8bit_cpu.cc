#include "engine/optim/adamw/adamw_params_cpu.h"
#include "engine/optim/adamw_8bit/adamw_8bit_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_optimizer.h"

namespace milepost::optim::cpu {
namespace {

template <typename T>
void AdamW8BitUpdate(const CpuUpdate<T>& u) {
  kernels::AdamW8Bit<T>(AdamWParamsOf(u), u.n, u.master,
                        {u.codes[0], u.scales[0], u.codes[1], u.scales[1]}, u.gradient, u.copy);
}

}  // namespace

constinit const CpuOptimizer kAdamW8Bit = MP_CPU_OPTIMIZER(AdamW8BitUpdate);

}  // namespace milepost::optim::cpu
