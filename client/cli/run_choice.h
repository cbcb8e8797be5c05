// What `milepost run` does with the jobs that its data directory holds. Pure.
#ifndef MILEPOST_CLIENT_CLI_RUN_CHOICE_H_
#define MILEPOST_CLIENT_CLI_RUN_CHOICE_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "milepost/v1/job.pb.h"

namespace milepost::client {

struct RunChoice {
  enum Action {
    kSubmit,  // a new job
    kAttach,  // `job` has not ended: go on with it
    kResume,  // `job` is suspended or has ended: queue it again, with `new_steps` when given
    kDone,    // `job` has already made all its steps
  };
  Action action = kSubmit;
  v1::Job job;
  std::optional<int64_t> new_steps;
  // Unfinished jobs of other specs, which would take the slots first. They are suspended: nothing
  // of them is lost, and running their spec again, or --job, goes on with them.
  std::vector<std::string> set_aside;
  // With --fresh the jobs of this spec, the newest first. They stay, and are cancelled where they
  // have not ended; their checkpoints are deleted, so that they can be restored.
  std::vector<v1::Job> replaced;
  // With several --job, the others: to be queued again, if they are not.
  std::vector<v1::Job> also;
  std::string how;   // "started", "continuing", ...
  std::string note;  // for the user; may be empty
};

// The newest job of the same lineage (LineageDigest) decides; `fresh`: none does.
RunChoice ChooseRun(const v1::JobSpec& normalized, const std::vector<v1::Job>& newest_first,
                    bool fresh = false);

// Of --job: the first name is the run's job. NOT_FOUND naming the one that there is not.
absl::StatusOr<RunChoice> ChooseJobs(const std::vector<std::string>& names,
                                     const std::vector<v1::Job>& newest_first);

// Suspended, or about to be: it waits for somebody to resume it.
bool IsSuspended(v1::JobState state);

// A job that has not ended when a run's own has.
struct WaitingJob {
  v1::Job job;
  std::string why;  // it does not run here; empty: it does, as soon as there are slots
};

// What slots a run has.
struct RunSlots {
  v1::DeviceKind device;
  int count = 0;
};

// The oldest first. `before`: names of jobs that were there before the run, which it leaves alone.
std::vector<WaitingJob> WaitingJobs(const std::vector<v1::Job>& newest_first, const RunSlots& slots,
                                    const std::set<std::string>& before);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_RUN_CHOICE_H_
