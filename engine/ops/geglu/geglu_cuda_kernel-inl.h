// GeGLU's gate, of one element.
#ifndef MILEPOST_ENGINE_OPS_GEGLU_GEGLU_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPS_GEGLU_GEGLU_CUDA_KERNEL_INL_H_

#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/gated_rows_kernels.h"
#include "engine/ops/gelu/gelu_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {

struct GeluGate {
  MP_DEVICE static float Value(float gate) { return GeluFn()(gate); }
  MP_DEVICE static Activated WithSlope(float gate) {
    return {GeluFn()(gate), GeluBackwardFn()(gate, 1.0f)};
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_GEGLU_GEGLU_CUDA_KERNEL_INL_H_
