// Whether a job fits the memory of this host, where all its ranks are to run.
//
//   MP_ASSIGN_OR_RETURN(plan::StepPlan plan, PlanOnHost(spec));
//   MP_RETURN_IF_ERROR(CheckFits(spec, plan, HostBytesPerRank(spec.resources().ranks())));
#ifndef MILEPOST_CLIENT_CLI_FIT_H_
#define MILEPOST_CLIENT_CLI_FIT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/plan/step_plan.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::client {

// The CPU threads that each rank would have here. `spec` is normalised.
int ThreadsPerRank(const v1::JobSpec& spec);

// Rank 0's plan with that many threads, or as many as given.
absl::StatusOr<plan::StepPlan> PlanOnHost(const v1::JobSpec& spec);
absl::StatusOr<plan::StepPlan> PlanOnHost(const v1::JobSpec& spec, int threads);

// What each of `ranks` ranks may use of this host's physical memory.
int64_t HostBytesPerRank(int ranks);

// INVALID_ARGUMENT when a rank needs more than `available` bytes, naming the largest smaller
// micro-batch that fits, if there is one.
absl::Status CheckFits(const v1::JobSpec& spec, const plan::StepPlan& plan, int64_t available);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_FIT_H_
