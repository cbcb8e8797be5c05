// SwiGLU's gate, of one element.
#ifndef MILEPOST_ENGINE_OPS_SWIGLU_SWIGLU_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPS_SWIGLU_SWIGLU_CUDA_KERNEL_INL_H_

#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/elementwise_kernels.h"
#include "engine/kernels/cuda/gated_rows_kernels.h"

namespace milepost::kernels::cuda {

struct SiluGate {
  MP_DEVICE static float Value(float gate) { return gate * Logistic(gate); }
  // With s = logistic(gate): silu' = s + gate s (1 - s).
  MP_DEVICE static Activated WithSlope(float gate) {
    const float s = Logistic(gate);
    return {gate * s, fmaf(gate, fmaf(-s, s, s), s)};
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_SWIGLU_SWIGLU_CUDA_KERNEL_INL_H_
