// The optimizer's passes over flat ranges. Both parallel; results do not depend on the thread
// count.
//
//   AdamWParams params{.learning_rate = 3e-4f, ..., .step = 1};
//   AdamW<bf16>(params, n, master, m, v, gradient, parameter);
#ifndef MILEPOST_ENGINE_OPS_OPTIMIZER_OPTIMIZER_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_OPTIMIZER_OPTIMIZER_CPU_KERNEL_H_

#include <cstddef>
#include <cstdint>

#include "engine/dtype/half.h"
#include "engine/ops/contract/sums.h"
#include "engine/ops/optimizer/optimizer_contract.h"

namespace milepost::kernels {

// p -= lr * (mhat / (sqrt(vhat) + eps) + weight_decay * p), one pass. `copy` (nullable) receives p
// as T; p, m, v are fp32 and updated in place. g is not changed.
template <typename T>
void AdamW(const AdamWParams& params, int64_t n, float* p, float* m, float* v, const float* g,
           T* copy);

// m = momentum * m + (g + weight_decay * p);  p -= lr * m. Otherwise as AdamW.
template <typename T>
void Sgd(const SgdParams& params, int64_t n, float* p, float* m, const float* g, T* copy);

// p -= lr * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * p);  m = beta2 * m + (1 - beta2) *
// g (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, algorithm 2; sign(0) is
// 0). Otherwise as AdamW.
template <typename T>
void Lion(const LionParams& params, int64_t n, float* p, float* m, const float* g, T* copy);

// Sum of g[i]^2 in fp64: 4096-element blocks, then the blocks in order. Not finite exactly if some
// g[i] is not finite (a finite float's square cannot overflow fp64).
double SumSquares(const float* g, int64_t n, void* workspace);
double SumSquares(const bf16* g, int64_t n, void* workspace);  // the same of the widened values

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_OPTIMIZER_OPTIMIZER_CPU_KERNEL_H_
