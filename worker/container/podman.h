// Podman on this host: where it is, and short calls of it, bounded in time.
//
//   MP_ASSIGN_OR_RETURN(std::string podman, FindPodman());
//   MP_ASSIGN_OR_RETURN(PodmanAnswer answer,
//                       AskPodman({"info"}, {.patience = absl::Seconds(20)}));
//
// Thread-safe.
#ifndef MILEPOST_WORKER_CONTAINER_PODMAN_H_
#define MILEPOST_WORKER_CONTAINER_PODMAN_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/subprocess.h"

namespace milepost::worker {

// Its path, from this process's PATH. FAILED_PRECONDITION: it is not installed; says the remedy.
absl::StatusOr<std::string> FindPodman();

struct PodmanCall {
  absl::Duration patience;
  std::function<bool()> give_up = [] { return false; };
};

struct PodmanAnswer {
  ExitResult end;
  std::string out, err;  // what it said; of much only the beginning
};

// `arguments`: without those of PodmanArguments. Blocks until podman has ended.
// FAILED_PRECONDITION: as FindPodman. UNAVAILABLE: it took longer than `patience`, and was killed.
// CANCELLED: `give_up` returned true. Other errors: it cannot be run.
absl::StatusOr<PodmanAnswer> AskPodman(const std::vector<std::string>& arguments,
                                       const PodmanCall& call);

// What it says of a failure: the last line of its output, without "Error: ". One line. Pure.
std::string PodmanError(absl::string_view err);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_CONTAINER_PODMAN_H_
