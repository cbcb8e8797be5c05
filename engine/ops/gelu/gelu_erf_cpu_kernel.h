// GELU as its definition has it, x Phi(x) with the normal distribution's Phi ("gelu" in torch and
// BERT); elementwise.h has the tanh form. T in {float, bf16}. Parallel; n elements.
#ifndef MILEPOST_ENGINE_OPS_GELU_GELU_ERF_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_GELU_GELU_ERF_CPU_KERNEL_H_

#include <cstdint>

#include "engine/dtype/half.h"

namespace milepost::kernels {

// y = 0.5 x (1 + erf(x / sqrt(2))). y may alias x.
template <typename T>
void GeluErfForward(const T* x, int64_t n, T* y);

// dx = dy (Phi(x) + x Phi'(x)). dx may alias dy or x.
template <typename T>
void GeluErfBackward(const T* x, const T* dy, int64_t n, T* dx);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_GELU_GELU_ERF_CPU_KERNEL_H_
