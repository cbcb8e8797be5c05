// Turns values into buffers: which of them persist, which share one in place, and what each op
// touches. Offsets come later (memory_pass.h).
//
//   AddPersistentBuffers(plan);       // plan.groups, plan.train.graph are set
//   AssignBuffers(plan, plan.train);  // its ops are set
#ifndef MILEPOST_ENGINE_PLAN_PASSES_BUFFER_PASS_H_
#define MILEPOST_ENGINE_PLAN_PASSES_BUFFER_PASS_H_

#include "engine/plan/step_plan.h"

namespace milepost::plan {

// Parameters and scalars; for a plan that trains also optimizer state and gradients. The latter
// persist only where they must: with accumulation, or where a group has padding.
void AddPersistentBuffers(StepPlan& plan, bool training);

// Gives every value of the program a place and every op its workspace and accesses. A value that
// may overwrite an input which dies at the same op takes that input's buffer. Buffers of
// inputs and of caches are shared by all programs: the one with the most rows comes first.
void AssignBuffers(StepPlan& plan, Program& program);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PASSES_BUFFER_PASS_H_
