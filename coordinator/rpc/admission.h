// The coordinator's admission: plans a job when it is submitted, settles what its spec leaves to
// the planner, and refuses what can run nowhere (engine/plan/admission.h).
//
//   options.admission = AdmitWhatFits;
#ifndef MILEPOST_COORDINATOR_RPC_ADMISSION_H_
#define MILEPOST_COORDINATOR_RPC_ADMISSION_H_

#include "absl/status/statusor.h"
#include "coordinator/rpc/coordinator.h"

namespace milepost::coordinator {

// `auto` fields are chosen for the lesser of resources.memory and the smallest slot, so that the
// job can run wherever it is placed; a job that was spelled out is refused when it exceeds
// resources.memory or the largest slot. Of a GPU's memory a rank may use all but what the driver
// and the libraries take; copies of checkpoints lie in the host's. Pure; milliseconds, for the
// largest models a second. INVALID_ARGUMENT: says what would fit.
absl::StatusOr<AdmittedSpec> AdmitWhatFits(const v1::JobSpec& spec, const KnownPlace& known);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_ADMISSION_H_
