// The exit codes of every binary, and the only mapping from a Status to them.
#ifndef MILEPOST_COMMON_EXIT_CODES_H_
#define MILEPOST_COMMON_EXIT_CODES_H_

#include "absl/status/status.h"

namespace milepost {

enum ExitCode : int {
  kExitOk = 0,
  kExitError = 1,
  kExitUsage = 2,  // bad flags, spec or data: the user can mend it
  // milepost-coordinator with --etcd: it is no longer sure that no other coordinator is active.
  kExitNotActive = 3,
  // Only milepost-trainer; the worker turns them into a FailureClass.
  kExitStopped = 10,   // told to stop: saved a checkpoint at a step boundary
  kExitPeerLost = 11,  // another rank went away; never the root cause
  kExitFenced = 12,    // a newer generation exists
  kExitData = 13,
  kExitOutOfMemory = 14,
  kExitNetwork = 15,  // the coordinator stayed out of reach
  // milepost job wait, job logs -f and run.
  kExitJobFailed = 100,
  kExitJobNotFinished = 101,
  kExitNotFound = 102,
  kExitJobCancelled = 103,
  kExitTimeout = 124,
  kExitInterrupted = 130,
};

inline int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
      return kExitUsage;
    case absl::StatusCode::kNotFound:
      return kExitNotFound;
    case absl::StatusCode::kDeadlineExceeded:
      return kExitTimeout;
    default:
      return kExitError;
  }
}

}  // namespace milepost

#endif  // MILEPOST_COMMON_EXIT_CODES_H_
