// Host memory that a checkpoint takes beside the arena: a rank copies what it saves, goes on
// training, and streams the copy away.
//
//   const int64_t at_the_peak = plan.arena_bytes + SnapshotBytes(plan);   // on a CPU
#ifndef MILEPOST_ENGINE_PLAN_SNAPSHOT_BYTES_H_
#define MILEPOST_ENGINE_PLAN_SNAPSHOT_BYTES_H_

#include <cstdint>

#include "engine/plan/step_plan.h"

namespace milepost::plan {

// Of one rank, padding included, running statistics (a few kB of a ResNet) not. Pure.
int64_t SnapshotBytes(const StepPlan& plan);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_SNAPSHOT_BYTES_H_
