// Which bytes of which buffers an op touches: what streams are ordered by, what liveness follows
// from, and what verification compares.
#ifndef MILEPOST_ENGINE_PLAN_ACCESSES_H_
#define MILEPOST_ENGINE_PLAN_ACCESSES_H_

#include <vector>

#include "engine/plan/step_plan.h"

namespace milepost::plan {

// Operands of the op's values by `program.places`, buffers of its flat group, the step's scalars
// and its workspace. An op that works on this rank's shard of a buffer counts as touching all of
// it: plans do not depend on the rank.
std::vector<Access> OpAccesses(const StepPlan& plan, const Program& program,
                               const PlannedOp& planned);

// The bytes of a value where it lies.
Access ValueAccess(const Program& program, graph::ValueId value, bool write);

inline bool Conflict(const Access& a, const Access& b) {
  return a.buffer == b.buffer && (a.write || b.write) && a.begin < b.end && b.begin < a.end;
}

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_ACCESSES_H_
