// Sgd of one element.
#ifndef MILEPOST_ENGINE_OPTIM_SGD_SGD_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPTIM_SGD_SGD_CUDA_KERNEL_INL_H_

#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/flat_update.h"

namespace milepost::kernels::cuda {

struct SgdRule {
  static constexpr int kStates = 1;
  MP_DEVICE static void Apply(const StepFactors& s, const SegmentFactors& f, float scale, float g,
                              float& p, float (&state)[kStates]) {
    float& m = state[0];
    m = fmaf(s.momentum, m, fmaf(f.decay, p, g * scale));
    p = fmaf(-f.rate, m, p);
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPTIM_SGD_SGD_CUDA_KERNEL_INL_H_
