// What `milepost run` does with the jobs that its data directory already holds.
#ifndef MILEPOST_CLIENT_CLI_RUN_CHOICE_H_
#define MILEPOST_CLIENT_CLI_RUN_CHOICE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "milepost/v1/job.pb.h"

namespace milepost::client {

struct RunChoice {
  enum Action {
    kSubmit,  // a new job
    kAttach,  // `job` has not ended: go on with it
    kResume,  // `job` has ended: queue it again, with `new_steps` when given
    kDone,    // `job` has already made all its steps
  };
  Action action = kSubmit;
  v1::Job job;
  std::optional<int64_t> new_steps;
  // Unfinished jobs of other specs, which would take the slots first. They are cancelled: their
  // checkpoints stay, and running their spec again resumes them.
  std::vector<std::string> cancel;
  std::string how;   // "started", "continuing", ...
  std::string note;  // for the user; may be empty
};

// The newest job of the same lineage (LineageDigest) decides. Pure.
RunChoice ChooseRun(const v1::JobSpec& normalized, const std::vector<v1::Job>& newest_first);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_RUN_CHOICE_H_
