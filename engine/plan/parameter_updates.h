// Which rule updates each parameter: the optimizer's, changed by train.optimizer.groups.
//
//   MP_ASSIGN_OR_RETURN(ParameterUpdates updates,
//                       UpdatesOf(spec.train().optimizer(), graph, optimizer));
//   updates.by_parameter[i].frozen ...
//
// Patterns: graph/name_pattern.h. The first entry that matches is the one that counts. Pure.
#ifndef MILEPOST_ENGINE_PLAN_PARAMETER_UPDATES_H_
#define MILEPOST_ENGINE_PLAN_PARAMETER_UPDATES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "engine/plan/step_plan.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::plan {

struct ParameterUpdates {
  std::vector<ParameterUpdate> by_parameter;  // of graph.parameters
  std::vector<ParameterGroup> groups;         // as the spec lists them
};

// INVALID_ARGUMENT, naming train.optimizer.groups[i].match, for a pattern that matches nothing
// (with the parameters whose names come nearest) or nothing that an earlier one does not match, and
// where everything is frozen.
absl::StatusOr<ParameterUpdates> UpdatesOf(const v1::OptimizerSpec& spec, const graph::Graph& graph,
                                           Optimizer optimizer);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PARAMETER_UPDATES_H_
