// Lion of one element.
#ifndef MILEPOST_ENGINE_OPTIM_LION_LION_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPTIM_LION_LION_CUDA_KERNEL_INL_H_

#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/flat_update.h"

namespace milepost::kernels::cuda {

struct LionRule {
  static constexpr int kStates = 1;
  MP_DEVICE static void Apply(const StepFactors& s, const SegmentFactors& f, float scale, float g,
                              float& p, float (&state)[kStates]) {
    float& m = state[0];
    const float grad = g * scale;
    const float mixed = fmaf(s.beta1, m, (1.0f - s.beta1) * grad);
    p = p * f.shrink - (mixed == 0.0f ? 0.0f : copysignf(f.rate, mixed));
    m = fmaf(s.beta2, m, (1.0f - s.beta2) * grad);
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPTIM_LION_LION_CUDA_KERNEL_INL_H_
