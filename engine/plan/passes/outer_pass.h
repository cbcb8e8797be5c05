// The programs of islands that train apart (train.sync; Douillard et al., "DiLoCo", 2023).
//
//   plan.anchor.ops = MakeAnchorOps(plan.groups);
//   plan.outer.ops = MakeOuterOps(plan.groups, options);
//
// An island's training program is that of a job of its ranks alone. In an outer step master and
// states of each shard are summed over the islands, and the outer optimizer moves what all of them
// go on with. While one group is moved the next one's sums travel.
#ifndef MILEPOST_ENGINE_PLAN_PASSES_OUTER_PASS_H_
#define MILEPOST_ENGINE_PLAN_PASSES_OUTER_PASS_H_

#include <vector>

#include "engine/plan/step_plan.h"

namespace milepost::plan {

// One for each group that is trained.
std::vector<PlannedOp> MakeAnchorOps(const std::vector<FlatGroup>& groups);

// Of each of them, in program order and with their costs: the sums, the update and, where ranks
// hold parameters that shards update, a gather.
std::vector<PlannedOp> MakeOuterOps(const std::vector<FlatGroup>& groups,
                                    const PlanOptions& options);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PASSES_OUTER_PASS_H_
