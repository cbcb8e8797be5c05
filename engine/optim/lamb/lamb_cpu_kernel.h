// LAMB (You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes",
// 2020, algorithm 2) in two passes, because a tensor's step needs norms over the whole tensor:
//
//   LambMoments(params, n, p, m, v, g, workspace, sums);  // sums of squares of p and of the update
//   ...                                                   // summed over the tensor's pieces
//   params.learning_rate *= ratio;                        // |p| / |update|
//   LambApply<bf16>(params, n, p, m, v, parameter);
//
// Both parallel; results do not depend on the thread count.
#ifndef MILEPOST_ENGINE_OPTIM_LAMB_LAMB_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPTIM_LAMB_LAMB_CPU_KERNEL_H_

#include <cstddef>
#include <cstdint>

#include "engine/dtype/half.h"
#include "engine/optim/adamw/adamw_contract.h"
#include "engine/optim/lamb/lamb_contract.h"

namespace milepost::kernels {

// m and v as AdamW has them; sums[0] = sum of p^2, sums[1] = sum of u^2 in fp64, where
// u = mhat / (sqrt(vhat) + eps) + weight_decay * p. Uses all of `params` but the learning rate.
void LambMoments(const AdamWParams& params, int64_t n, const float* p, float* m, float* v,
                 const float* g, void* workspace, double sums[2]);

// p -= lr * u, from the m and v that LambMoments left. `copy` (nullable) receives p as T.
template <typename T>
void LambApply(const AdamWParams& params, int64_t n, float* p, const float* m, const float* v,
               T* copy);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPTIM_LAMB_LAMB_CPU_KERNEL_H_
