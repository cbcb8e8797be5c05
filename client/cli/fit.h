// Where a job would run on this host, all ranks side by side: what its plans are made for here.
//
//   MP_ASSIGN_OR_RETURN(const plan::RankPlace place, PlaceOnHost(spec));
//   MP_ASSIGN_OR_RETURN(const plan::Admission admission, plan::Admit(spec, place));
#ifndef MILEPOST_CLIENT_CLI_FIT_H_
#define MILEPOST_CLIENT_CLI_FIT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/plan/settings.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::client {

// The CPU threads that each rank would have here. `spec` is normalised.
int ThreadsPerRank(const v1::JobSpec& spec);

// What each of `ranks` ranks may use of this host's memory.
int64_t HostBytesPerRank(int ranks);

// The lesser of that and resources.memory, with the spec's device profile; for a job on GPUs the
// profile's memory, whatever this host has. INVALID_ARGUMENT, naming the field, when there is no
// such profile.
absl::StatusOr<plan::RankPlace> PlaceOnHost(const v1::JobSpec& spec);

// "train.precision: bf16 would be about 1.7 times as fast on this host", where another precision is
// expected to be faster there (plan/faster_precision.h); else empty. `where`: for people.
std::string TellFasterPrecision(const v1::JobSpec& spec, const plan::RankPlace& place,
                                absl::string_view where);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_FIT_H_
