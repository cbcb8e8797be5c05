// Which options no plan can be made with. A spec's own checks (common/spec) come before; these know
// the number of ranks, and hold for options that are no spec's.
//
//   MP_RETURN_IF_ERROR(CheckOptions(options));
//
// Pure.
#ifndef MILEPOST_ENGINE_PLAN_PLANNER_OPTION_CHECKS_H_
#define MILEPOST_ENGINE_PLAN_PLANNER_OPTION_CHECKS_H_

#include "absl/status/status.h"
#include "engine/plan/step_plan.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::plan {

// INVALID_ARGUMENT names the spec's field, and says what to take instead.
absl::Status CheckOptions(const PlanOptions& options);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PLANNER_OPTION_CHECKS_H_
