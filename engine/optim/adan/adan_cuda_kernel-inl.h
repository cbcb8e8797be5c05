// Adan of one element.
#ifndef MILEPOST_ENGINE_OPTIM_ADAN_ADAN_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPTIM_ADAN_ADAN_CUDA_KERNEL_INL_H_

#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/flat_update.h"

namespace milepost::kernels::cuda {

struct AdanRule {
  static constexpr int kStates = 4;
  MP_DEVICE static void Apply(const StepFactors& s, const SegmentFactors& f, float scale, float g,
                              float& p, float (&state)[kStates]) {
    float &m = state[0], &v = state[1], &n = state[2], &before = state[3];
    const float x = g * scale;
    const float change = (x - before) * s.past;
    m = fmaf(s.beta1, m, (1.0f - s.beta1) * x);
    v = fmaf(s.beta2, v, (1.0f - s.beta2) * change);
    const float ahead = fmaf(s.beta2, change, x);
    n = fmaf(s.beta3, n, (1.0f - s.beta3) * (ahead * ahead));
    const float step = fmaf(s.second, v, m) / fmaf(sqrtf(n), s.root3, s.epsilon);
    p = fmaf(-f.rate, step, p) * f.shrink;
    before = x;
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPTIM_ADAN_ADAN_CUDA_KERNEL_INL_H_
