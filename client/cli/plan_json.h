// What a spec needs on a device, for programs: what `milepost plan -o json --device DEVICE` prints.
#ifndef MILEPOST_CLIENT_CLI_PLAN_JSON_H_
#define MILEPOST_CLIENT_CLI_PLAN_JSON_H_

#include <string>

#include "absl/status/statusor.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::client {

// `spec`: as it was parsed, without defaults. `device`: a built-in profile's name; empty: this
// host. The plan, with "problem" where it does not fit there. INVALID_ARGUMENT: the spec, or the
// name, is wrong.
absl::StatusOr<std::string> PlanJsonOn(const v1::JobSpec& spec, const std::string& device);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_PLAN_JSON_H_
