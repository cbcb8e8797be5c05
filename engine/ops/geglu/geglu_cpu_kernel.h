// GeGLU on packed rows, x [rows, 2 * width] holds gate, then up, in each row. T: float, f16, bf16.
// Parallel over rows; results do not depend on the thread count.
#ifndef MILEPOST_ENGINE_OPS_GEGLU_GEGLU_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_GEGLU_GEGLU_CPU_KERNEL_H_

#include <cstdint>

#include "engine/dtype/half.h"

namespace milepost::kernels {

// y [rows, width] = gelu(gate) * up, by GELU's tanh form. y may not alias x.
template <typename T>
void GeGluForward(const T* x, int64_t rows, int64_t width, T* y);

// dx [rows, 2 * width], from dy [rows, width]. dx may alias x.
template <typename T>
void GeGluBackward(const T* x, const T* dy, int64_t rows, int64_t width, T* dx);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_GEGLU_GEGLU_CPU_KERNEL_H_
