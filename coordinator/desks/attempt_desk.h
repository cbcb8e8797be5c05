// The desk for attempts: what their ranks and workers may do, and how ranks meet.
#ifndef MILEPOST_COORDINATOR_DESKS_ATTEMPT_DESK_H_
#define MILEPOST_COORDINATOR_DESKS_ATTEMPT_DESK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "coordinator/desks/desk.h"
#include "coordinator/desks/rendezvous.h"
#include "milepost/v1/worker.pb.h"

namespace milepost::coordinator {

class AttemptDesk : private Desk {
 public:
  explicit AttemptDesk(const DeskTools& tools) : Desk(tools), rendezvous_(tools.store) {}

  // ABORTED unless `generation` is the job's current one and its attempt runs.
  absl::Status CheckGeneration(const std::string& job, int64_t generation);
  absl::Status CheckGenerationLocked(const std::string& job, int64_t generation) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // The same, and the worker runs a rank of it now. The answer to others does not tell whether
  // there is such a job.
  absl::Status CheckRuns(const std::string& worker, const std::string& job, int64_t generation);
  // Runs `action` (short) while the generation is certain to stay the current one.
  absl::Status WithGeneration(const std::string& job, int64_t generation,
                              const std::function<absl::Status()>& action);
  // A job that the worker runs now made the checkpoint (it is `owner`'s) or begins with it.
  bool NeedsCheckpoint(const std::string& worker, const std::string& checkpoint,
                       const std::string& owner);
  RendezvousTable& rendezvous() { return rendezvous_; }

  // ---- by the coordinator, and the desk for workers ----
  // Who runs its ranks is remembered.
  void RememberLocked(int64_t number, const v1::JobRecord& record)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetLocked(int64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    attempts_.erase(number);
  }
  // The worker ran that rank, in the job's newest generation.
  bool IsItsLineLocked(const std::string& worker, const v1::LogLine& line) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);

 private:
  struct Attempt {
    int64_t generation = 0;
    std::vector<std::string> workers;  // by rank
    // Of the one before, whose last lines come when this one has begun.
    int64_t last_generation = 0;
    std::vector<std::string> last_workers;
  };

  RendezvousTable rendezvous_;
  std::map<int64_t, Attempt> attempts_ ABSL_GUARDED_BY(mutex_);  // the newest of each job
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_DESKS_ATTEMPT_DESK_H_
