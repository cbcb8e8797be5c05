// Adan's pass over a flat range, on the CPU. Parallel; results do not depend on the thread count.
//
//   Adan<bf16>(params, n, master, {m, v, squares, before}, gradient, parameter);
#ifndef MILEPOST_ENGINE_OPTIM_ADAN_ADAN_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPTIM_ADAN_ADAN_CPU_KERNEL_H_

#include <cstdint>

#include "engine/dtype/half.h"
#include "engine/optim/adan/adan_contract.h"

namespace milepost::kernels {

// fp32, updated in place.
struct AdanStates {
  float* m = nullptr;
  float* v = nullptr;
  float* n = nullptr;
  float* g = nullptr;  // the scaled gradient of the update before
};

// With the scaled gradient x and d = x - g (0 in the first update):
//   m = beta1 m + (1 - beta1) x;  v = beta2 v + (1 - beta2) d
//   n = beta3 n + (1 - beta3) (x + beta2 d)^2;  g = x
//   u = m / (1 - beta1^t) + beta2 v / (1 - beta2^t)
//   p = (p - lr u / (sqrt(n / (1 - beta3^t)) + epsilon)) / (1 + lr weight_decay)
// (algorithm 1 of the paper, with the bias corrections of its authors' program). `copy` (nullable)
// receives p as T.
template <typename T>
void Adan(const AdanParams& params, int64_t n, float* p, const AdanStates& states, const float* g,
          T* copy);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPTIM_ADAN_ADAN_CPU_KERNEL_H_
