// What a rank on a GPU takes of its memory beside the arena: the control block, which changes from
// step to step, and the kernels' tables, which are as many as the shards' pieces and the experts.
//
//   const int64_t of_the_device = plan.arena_bytes + CudaBesideBytes(plan);
//
// Pure.
#ifndef MILEPOST_ENGINE_PLAN_CUDA_BESIDE_H_
#define MILEPOST_ENGINE_PLAN_CUDA_BESIDE_H_

#include <cstdint>

#include "engine/plan/step_plan.h"

namespace milepost::plan {

// At most; about 1/256 of a byte per parameter of a shard where that is large. 0 on the CPU.
int64_t CudaBesideBytes(const StepPlan& plan);

// A part of it: where each expert's weights lie, for each op that multiplies by them.
int64_t ExpertTableBytes(const StepPlan& plan);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_CUDA_BESIDE_H_
