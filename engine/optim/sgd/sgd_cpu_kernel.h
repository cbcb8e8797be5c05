// Sgd's pass over a flat range, on the CPU. Parallel; results do not depend on the thread count.
//
//   Sgd<bf16>(params, n, master, m, gradient, parameter);
#ifndef MILEPOST_ENGINE_OPTIM_SGD_SGD_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPTIM_SGD_SGD_CPU_KERNEL_H_

#include <cstdint>

#include "engine/dtype/half.h"
#include "engine/optim/sgd/sgd_contract.h"

namespace milepost::kernels {

// m = momentum * m + (g + weight_decay * p);  p -= lr * m. `copy`
// (nullable) receives p as T; p and m are fp32 and updated in place.
template <typename T>
void Sgd(const SgdParams& params, int64_t n, float* p, float* m, const float* g, T* copy);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPTIM_SGD_SGD_CPU_KERNEL_H_
