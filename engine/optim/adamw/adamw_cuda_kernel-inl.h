// AdamW of one element.
#ifndef MILEPOST_ENGINE_OPTIM_ADAMW_ADAMW_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPTIM_ADAMW_ADAMW_CUDA_KERNEL_INL_H_

#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/flat_update.h"

namespace milepost::kernels::cuda {

struct AdamWRule {
  static constexpr int kStates = 2;
  MP_DEVICE static void Apply(const StepFactors& s, const SegmentFactors& f, float scale, float g,
                              float& p, float (&state)[kStates]) {
    Apply(s, f, scale, g, p, state[0], state[1]);
  }
  MP_DEVICE static void Apply(const StepFactors& s, const SegmentFactors& f, float scale, float g,
                              float& p, float& m, float& v) {
    const float grad = g * scale;
    m = fmaf(s.beta1, m, (1.0f - s.beta1) * grad);
    v = fmaf(s.beta2, v, (1.0f - s.beta2) * (grad * grad));
    p = fmaf(-f.rate, m / fmaf(sqrtf(v), s.root2, s.epsilon), p * f.shrink);
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPTIM_ADAMW_ADAMW_CUDA_KERNEL_INL_H_
