// What the coordinator checks of a submitted job: it plans the job, settles what the spec leaves to
// the planner, and refuses what can run nowhere (engine/plan/fit/fit.h).
//
//   options.check_submission = CheckSubmission;
#ifndef MILEPOST_COORDINATOR_RPC_SUBMISSION_CHECK_H_
#define MILEPOST_COORDINATOR_RPC_SUBMISSION_CHECK_H_

#include "absl/status/statusor.h"
#include "coordinator/desks/coordinator.h"

namespace milepost::coordinator {

// `auto` fields are chosen for the lesser of resources.memory and the smallest slot, so that the
// job can run wherever it is placed; a job that was spelled out is refused when it exceeds
// resources.memory or the largest slot. Of a GPU's memory a rank may use all but what the driver
// and the libraries take; copies of checkpoints lie in the host's. Milliseconds, for the largest
// models that are planned a second. `still_wanted` is asked many times a second; what it says, if
// it is not OK, ends the work. INVALID_ARGUMENT: says what would fit, or that planning the spec
// takes more than a request may (plan::kLimitsOfRequest).
absl::StatusOr<CheckedSpec> CheckSubmission(const v1::JobSpec& spec, const KnownPlace& known,
                                            const StillWanted& still_wanted);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_SUBMISSION_CHECK_H_
