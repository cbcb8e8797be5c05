// Lion's pass over a flat range, on the CPU. Parallel; results do not depend on the thread count.
//
//   Lion<bf16>(params, n, master, m, gradient, parameter);
#ifndef MILEPOST_ENGINE_OPTIM_LION_LION_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPTIM_LION_LION_CPU_KERNEL_H_

#include <cstdint>

#include "engine/dtype/half.h"
#include "engine/optim/lion/lion_contract.h"

namespace milepost::kernels {

// p -= lr * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * p);  m = beta2 * m + (1 - beta2) *
// g (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, algorithm 2; sign(0) is
// 0). `copy`
// (nullable) receives p as T; p and m are fp32 and updated in place.
template <typename T>
void Lion(const LionParams& params, int64_t n, float* p, float* m, const float* g, T* copy);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPTIM_LION_LION_CPU_KERNEL_H_
