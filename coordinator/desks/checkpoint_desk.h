// The desk for checkpoints: committing them, and which go and which stay.
#ifndef MILEPOST_COORDINATOR_DESKS_CHECKPOINT_DESK_H_
#define MILEPOST_COORDINATOR_DESKS_CHECKPOINT_DESK_H_

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/desks/desk.h"
#include "milepost/v1/checkpoint.pb.h"

namespace milepost::coordinator {

class AttemptDesk;
class CheckpointReader;

class CheckpointDesk : private Desk {
 public:
  // `attempts` outlives the desk.
  CheckpointDesk(const DeskTools& tools, AttemptDesk* attempts)
      : Desk(tools), attempts_(attempts) {}

  // Who commits, while it waits.
  struct Committer {
    absl::Time deadline;
    std::function<bool()> gone;           // asked about five times a second
    std::function<absl::Status()> holds;  // asked once all is written: is it still let in?
  };
  // Waits for all streams, then makes the checkpoint visible and tells the job's decisions that it
  // is the newest. ABORTED unless the generation is the job's current one at that moment. Where the
  // newest one cannot be stored (the disk is full) the answer is OK all the same, and no attempt of
  // any job begins until it is. Idempotent.
  absl::StatusOr<v1::Checkpoint> Commit(const v1::CommitCheckpointRequest& request,
                                        const Committer& committer);
  // ABORTED unless the checkpoint, open or committed, is that generation's.
  absl::Status CheckOwner(const std::string& name, const std::string& job, int64_t generation);
  // Into the bin, or with `purge` for good. FAILED_PRECONDITION also when a job is to begin with it
  // which has none of its own yet, or it is the newest one of a job that goes on.
  absl::Status Delete(const std::string& name, bool purge);
  // After a deletion or damage: tells the job's decisions which checkpoint is its newest. Where
  // that cannot be stored, as in Commit.
  absl::Status UpdateNewest(const std::string& job);

  // ---- by the desk for jobs ----
  // What the job is to begin with is not deleted while the answer lives: until the job is known to
  // need it, nothing else keeps it. Null: it begins with nothing, or that is not there.
  std::unique_ptr<CheckpointReader> Keep(const v1::JobSpec& spec);
  // What the job, should it be resumed, would begin with: kept while the answer lives. Null:
  // nothing, or that is known to be kept.
  absl::StatusOr<std::unique_ptr<CheckpointReader>> KeepForResuming(const std::string& job,
                                                                    const std::string& request_id);

  // ---- by the coordinator ----
  // As the store has it.
  CheckpointsChanged Newest(const std::string& job) const;
  // As in LoopHost.
  void LandingLocked(const State& before, const Outcome& outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Landed();
  // From time to time, of what has been in the bin for too long. By the loop's thread.
  void EmptyBin();

 private:
  // Deletes what the job's spec does not keep, but for what jobs are to begin with.
  void Retain(const std::string& job);
  // Checkpoints that jobs are to begin with which have none of their own yet.
  std::set<std::string> AwaitedLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  AttemptDesk* const attempts_;
  // Of the loop's thread alone.
  std::set<std::string> released_;  // that a job began with, or will not any more
  absl::Time next_emptying_ = absl::InfinitePast();
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_DESKS_CHECKPOINT_DESK_H_
