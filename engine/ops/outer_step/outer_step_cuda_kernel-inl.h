// The kernel behind outer_step_cuda_kernel.h.
#ifndef MILEPOST_ENGINE_OPS_OUTER_STEP_OUTER_STEP_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPS_OUTER_STEP_OUTER_STEP_CUDA_KERNEL_INL_H_

#include <cstdint>

#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/elementwise_kernels.h"
#include "engine/ops/outer_step/outer_step_contract.h"

namespace milepost::kernels::cuda {

struct OuterUpdateKernel {
  static constexpr int kThreads = 256;
  OuterStep step;
  int64_t n;
  float* masters;
  float* anchors;
  float* momentum;

  Grid grid() const { return {.x = CeilDiv(n, kThreads * kMapElements)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t i = (c.block() * kThreads + c.thread()) * kMapElements;
    if (i >= n) return;
    const auto sums = ReadUpTo<kMapElements>(c, masters + i, n - i);
    auto anchor = ReadUpTo<kMapElements>(c, anchors + i, n - i);
    auto moving = ReadUpTo<kMapElements>(c, momentum + i, n - i);
    MP_UNROLL
    for (int j = 0; j < kMapElements; ++j) {
      const OuterElement now = StepOuter(step, sums.v[j], {anchor.v[j], moving.v[j]});
      anchor.v[j] = now.anchor;
      moving.v[j] = now.momentum;
    }
    WriteUpTo(c, masters + i, anchor.v, n - i);
    WriteUpTo(c, anchors + i, anchor.v, n - i);
    WriteUpTo(c, momentum + i, moving.v, n - i);
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_OUTER_STEP_OUTER_STEP_CUDA_KERNEL_INL_H_
