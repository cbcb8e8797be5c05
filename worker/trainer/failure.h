// How a trainer ends: the one mapping from an error to an exit code and a failure class. Pure and
// thread-safe.
#ifndef MILEPOST_WORKER_TRAINER_FAILURE_H_
#define MILEPOST_WORKER_TRAINER_FAILURE_H_

#include "absl/status/status.h"
#include "common/exit_codes.h"
#include "milepost/v1/trainer.pb.h"

namespace milepost::worker {

struct TrainerExit {
  int code = kExitOk;
  v1::FailureClass failure_class = v1::FAILURE_CLASS_UNSPECIFIED;
  std::string message;          // empty: nothing went wrong
  bool with_last_line = false;  // of v1::TrainerFailure
  v1::RankPosition position;    // likewise
};

// A failure before the first step: a bad spec or file is the user's to mend.
TrainerExit SetupFailure(const absl::Status& status);
// A failure to get memory for copies of the state (checkpoint.redundancy): another host may have
// it.
TrainerExit CopiesFailure(const absl::Status& status);
// A failure to read a checkpoint.
TrainerExit RestoreFailure(const absl::Status& status);
// A failure in a step, a validation or another collective call.
TrainerExit StepFailure(const absl::Status& status);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_FAILURE_H_
