// Dropout by itself, where no other kernel has it fused; T in {float, bf16}.
#ifndef MILEPOST_ENGINE_OPS_DROPOUT_DROPOUT_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_DROPOUT_DROPOUT_CPU_KERNEL_H_

#include <cstdint>

#include "engine/dtype/half.h"
#include "engine/kernels/cpu/random.h"

namespace milepost::kernels {

// y = x times the multipliers (random.h) of elements params.first_element + [0, n); the backward is
// the same on gradients. y may alias x. Parallel.
template <typename T>
void Dropout(const T* x, int64_t n, const DropoutParams& params, T* y);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_DROPOUT_DROPOUT_CPU_KERNEL_H_
