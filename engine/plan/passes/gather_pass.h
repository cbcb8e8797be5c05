// Parameters that are sharded (ZeRO stage 3): gathers a block's parameters before they are used and
// lets them go after, in training and in evaluation.
//
//   AddGathers(program, plan.groups, options);   // the program's ops are set
//   LimitInFlight(program);
//
// A visit is a run of neighbouring ops of one block: most blocks have one in the forward and one in
// the backward. A group is gathered for each visit that reads it, into a buffer of its own that
// lives until the last reader; visits that are no further apart than the gathers are ahead share
// one. Parameters that several blocks read (tied ones) need nothing special.
#ifndef MILEPOST_ENGINE_PLAN_PASSES_GATHER_PASS_H_
#define MILEPOST_ENGINE_PLAN_PASSES_GATHER_PASS_H_

#include <vector>

#include "engine/plan/step_plan.h"

namespace milepost::plan {

// For each gather adds the group's gathered parameters to the graph's values, has the ops read
// those, and puts the gather where the visit `options.prefetch` visits before its own begins. Does
// nothing where parameters are not sharded.
void AddGathers(Program& program, const std::vector<FlatGroup>& groups, const PlanOptions& options);

// Sets PlannedOp::after: a gather starts no earlier than where it stands, and a visit starts once
// the reductions, and the copies to the host, of all but the last visit are done, so that their
// bytes come free; a group's norm is taken once the gradient before its own is on the host. Call it
// when the ops stand where they stay.
void LimitInFlight(Program& program);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PASSES_GATHER_PASS_H_
