// Flat groups: which parameters lie in one buffer, and where in it.
//
//   plan.groups = MakeFlatGroups(graph, updates, options);
//
// A block's parameters that are updated alike, and that the same ranks have, are one group; the
// frozen ones of a block are groups of their own. A group is padded so that every rank's shard of
// it is as large and as aligned as any other's. Pure.
#ifndef MILEPOST_ENGINE_PLAN_PASSES_FLAT_GROUPS_H_
#define MILEPOST_ENGINE_PLAN_PASSES_FLAT_GROUPS_H_

#include <vector>

#include "engine/plan/step_plan.h"

namespace milepost::plan {

// Layout only: the buffers are not set. `updates`: by parameter of the graph; empty: all alike, by
// options.optimizer. `elsewhere`: of the parameters that only other stages or expert ranks
// have.
std::vector<FlatGroup> MakeFlatGroups(const graph::Graph& graph,
                                      const std::vector<ParameterUpdate>& updates,
                                      const PlanOptions& options, bool elsewhere = false);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PASSES_FLAT_GROUPS_H_
