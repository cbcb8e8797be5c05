#include "engine/ops/outer_step/outer_step_cpu_kernel.h"

#include <algorithm>

#include "engine/kernels/cpu/flat_ranges.h"

namespace milepost::kernels {

void OuterUpdate(const OuterStep& step, int64_t n, float* masters, float* anchors,
                 float* momentum) {
  ParallelFor(0, n, kFlatGrain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const OuterElement now = StepOuter(step, masters[i], {anchors[i], momentum[i]});
      masters[i] = anchors[i] = now.anchor;
      momentum[i] = now.momentum;
    }
  });
}

void KeepAnchors(const float* masters, int64_t n, float* anchors) {
  ParallelFor(0, n, kFlatGrain, [&](int64_t first, int64_t last) {
    std::copy(masters + first, masters + last, anchors + first);
  });
}

}  // namespace milepost::kernels
