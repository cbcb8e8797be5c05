// What a spec needs on a device, as JSON: what `milepost plan -o json --device DEVICE` prints.
#ifndef MILEPOST_CLIENT_CLI_PLAN_JSON_H_
#define MILEPOST_CLIENT_CLI_PLAN_JSON_H_

#include <string>

#include "absl/status/statusor.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::client {

// Returns the plan, with "problem" where it does not fit. `spec` is the spec as parsed, without
// defaults. `device` is a built-in profile's name; empty: this host. INVALID_ARGUMENT: the spec or
// the name is wrong.
absl::StatusOr<std::string> PlanJsonOn(const v1::JobSpec& spec, const std::string& device);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_PLAN_JSON_H_
