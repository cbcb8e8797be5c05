// May this job run here? Settles what it leaves to the planner (`auto` fields) and refuses what
// cannot fit, with the nearest settings that would. The same in the command line (`plan`, `run`)
// and in the coordinator, when a job is submitted.
//
//   MP_ASSIGN_OR_RETURN(FittingPlan fitting, PlanThatFits(spec, place));
//   // fitting.spec: nothing is `auto` any more; fitting.choices say why
//
// Pure and deterministic: the same spec and place give the same settings.
#ifndef MILEPOST_ENGINE_PLAN_FIT_FIT_H_
#define MILEPOST_ENGINE_PLAN_FIT_FIT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/plan/fit/settings.h"
#include "engine/plan/step_plan.h"
#include "milepost/v1/job.pb.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::plan {

// The profile that the spec names, or one by its device, for a rank with `threads` threads.
// INVALID_ARGUMENT, naming resources.profile, when there is none.
absl::StatusOr<DeviceProfile> ProfileOf(const v1::JobSpec& spec, int threads);

struct Resolved {
  v1::JobSpec spec;
  std::vector<v1::Choice> choices;  // for each field that was `auto`; empty: there was none
};

// Gives each `auto` field of a valid, normalised spec the value with the least expected time among
// those that fit; among all within 1% of it, the one that needs the fewest bytes. INVALID_ARGUMENT
// when the memory is not known, or when nothing fits (with what would).
absl::StatusOr<Resolved> ResolveAuto(const v1::JobSpec& spec, const RankPlace& place);

// INVALID_ARGUMENT when the plan of `spec` needs more than the place has, of a device's memory or
// of its host's, with a table of up to six settings that fit: those that change least first. For a
// device with memory of its own these may offload the optimizer. OK where the memory is not known.
absl::Status CheckFits(const v1::JobSpec& spec, const StepPlan& plan, const RankPlace& place);

struct FittingPlan {
  v1::JobSpec spec;
  std::vector<v1::Choice> choices;
  StepPlan plan;
};

// ResolveAuto, PlanTraining, CheckFits.
absl::StatusOr<FittingPlan> PlanThatFits(const v1::JobSpec& spec, const RankPlace& place);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_FIT_FIT_H_
