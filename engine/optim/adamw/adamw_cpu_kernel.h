// AdamW's pass over a flat range, on the CPU. Parallel; results do not depend on the thread count.
//
//   AdamW<bf16>(params, n, master, m, v, gradient, parameter);
#ifndef MILEPOST_ENGINE_OPTIM_ADAMW_ADAMW_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPTIM_ADAMW_ADAMW_CPU_KERNEL_H_

#include <cstdint>

#include "engine/dtype/half.h"
#include "engine/optim/adamw/adamw_contract.h"

namespace milepost::kernels {

// p -= lr * (mhat / (sqrt(vhat) + eps) + weight_decay * p), one pass. `copy` (nullable) receives p
// as T; p, m, v are fp32 and updated in place. g is not changed.
template <typename T>
void AdamW(const AdamWParams& params, int64_t n, float* p, float* m, float* v, const float* g,
           T* copy);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPTIM_ADAMW_ADAMW_CPU_KERNEL_H_
