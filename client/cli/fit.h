// The place of a job on this host, with all ranks side by side. Plans are made for this place.
//
//   MP_ASSIGN_OR_RETURN(const plan::RankPlace place, PlaceOnHost(spec));
//   MP_ASSIGN_OR_RETURN(const plan::FittingPlan fitting, plan::PlanThatFits(spec, place));
#ifndef MILEPOST_CLIENT_CLI_FIT_H_
#define MILEPOST_CLIENT_CLI_FIT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/plan/fit/settings.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::client {

// The CPU threads that each rank would have here. `spec` must be normalised.
int ThreadsPerRank(const v1::JobSpec& spec);

// The bytes of this host's memory that each of `ranks` ranks may use.
int64_t HostBytesPerRank(int ranks);

// The place has the spec's device profile. Its memory is the lesser of HostBytesPerRank and
// resources.memory. For a job on GPUs it is the profile's memory, whatever this host has.
// INVALID_ARGUMENT names the field: there is no such profile.
absl::StatusOr<plan::RankPlace> PlaceOnHost(const v1::JobSpec& spec);

// Gives the place the memory of one device of `profile`, or resources.memory if that is less.
void SetDeviceMemory(const plan::DeviceProfile& profile, const v1::JobSpec& spec,
                     plan::RankPlace* place);

// "train.precision: bf16 would be about 1.7 times as fast on this host", when another precision is
// expected to be faster there (plan/estimates/faster_precision.h); otherwise empty. `where` is the
// place in words, such as "this host".
std::string TellFasterPrecision(const v1::JobSpec& spec, const plan::RankPlace& place,
                                absl::string_view where);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_FIT_H_
