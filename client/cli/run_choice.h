// Decides what `milepost run` does with the jobs in its data directory. Pure.
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
    kAttach,  // `job` has not ended: continue it
    kResume,  // `job` is suspended or has ended: queue it again, maybe with `new_steps`
    kDone,    // `job` has already made all its steps
  };
  Action action = kSubmit;
  v1::Job job;
  std::optional<int64_t> new_steps;
  // Unfinished jobs of other specs, which would take the slots first. They are suspended and lose
  // nothing. Running their spec again, or --job, continues them.
  std::vector<std::string> set_aside;
  // With --fresh: the jobs of this spec, newest first. They stay. Unfinished ones are cancelled,
  // and their checkpoints go into the bin.
  std::vector<v1::Job> replaced;
  // With several --job: the other jobs, which are queued again if necessary.
  std::vector<v1::Job> also;
  std::string how;   // "started", "continuing", ...
  std::string note;  // for the user; may be empty
};

// The newest job of the same lineage (LineageDigest) decides. With `fresh` none does.
RunChoice ChooseRun(const v1::JobSpec& normalized, const std::vector<v1::Job>& newest_first,
                    bool fresh = false);

// Chooses by --job: the first name is the run's job. NOT_FOUND names the job that does not exist.
absl::StatusOr<RunChoice> ChooseJobs(const std::vector<std::string>& names,
                                     const std::vector<v1::Job>& newest_first);

// Whether it has succeeded before its last step (train.validation.patience), and what to say then.
bool EndedEarly(const v1::Job& job);
std::string EndedEarlyText(const v1::Job& job);

// True when the job is suspended or about to be. It waits until somebody resumes it.
bool IsSuspended(v1::JobState state);

// A job that has not ended when the run's own job has.
struct WaitingJob {
  v1::Job job;
  std::string why;  // why it does not run here; empty: it runs as soon as slots are free
};

// The slots of a run.
struct RunSlots {
  v1::DeviceKind device;
  int count = 0;
};

// Oldest first. `before`: names of jobs that existed before the run, which leaves them alone.
std::vector<WaitingJob> WaitingJobs(const std::vector<v1::Job>& newest_first, const RunSlots& slots,
                                    const std::set<std::string>& before);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_RUN_CHOICE_H_
