// Brings the files that were sent along with a job to where one of its ranks runs.
//
//   MP_RETURN_IF_ERROR(BringFiles(start, {.coordinator = endpoint, .temporary_files = "/tmp",
//                                         .give_up = give_up}, scratch.path() + "/files"));
//
// The archive comes from the host's cache, or from the coordinator, and is unpacked for this rank
// alone. While the coordinator is away it is asked again, for kFetchPatience in all.
//
// INVALID_ARGUMENT, NOT_FOUND, FAILED_PRECONDITION: trying again would not help. UNAVAILABLE: the
// coordinator did not answer. ABORTED: the generation is over. CANCELLED: `give_up` returned true.
// INTERNAL: something on this host, such as a full disk. Blocks.
#ifndef MILEPOST_WORKER_SCRIPT_FILES_FETCH_H_
#define MILEPOST_WORKER_SCRIPT_FILES_FETCH_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/rpc/endpoint.h"
#include "milepost/v1/worker.pb.h"

namespace milepost::worker {

inline constexpr absl::Duration kFetchPatience = absl::Minutes(5);

struct FetchOptions {
  Endpoint coordinator;
  std::string temporary_files;  // where the cache is
  std::function<bool()> give_up;
  absl::Duration patience = kFetchPatience;
};

// Makes `folder`.
absl::Status BringFiles(const v1::StartRank& start, const FetchOptions& options,
                        const std::string& folder);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_FILES_FETCH_H_
