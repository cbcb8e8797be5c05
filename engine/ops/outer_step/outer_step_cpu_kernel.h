// Outer steps of islands, on the CPU. n is a number of elements. The same bits at any thread count.
#ifndef MILEPOST_ENGINE_OPS_OUTER_STEP_OUTER_STEP_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_OUTER_STEP_OUTER_STEP_CPU_KERNEL_H_

#include <cstdint>

#include "engine/ops/outer_step/outer_step_contract.h"

namespace milepost::kernels {

// masters: the islands' sums, and then what all go on with. anchors, momentum: moved.
void OuterUpdate(const OuterStep& step, int64_t n, float* masters, float* anchors, float* momentum);

// anchors = masters.
void KeepAnchors(const float* masters, int64_t n, float* anchors);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_OUTER_STEP_OUTER_STEP_CPU_KERNEL_H_
