// A job's state that its hosts keep in memory. The next attempt goes on from it where the one
// before was lost, without reading a checkpoint. There are two sources:
// - A rank that loses its peers while it is not changing its state leaves the state there
//   (KeepState). This suffices where the remaining ranks together have all state (stage 0, hybrid
//   sharding).
// - With checkpoint.redundancy every rank's state is there after every step, and again on another
//   rank's host (peer_copies.h).
//
//   // before leaving:
//   KeepState(folder, {job, generation, rank, "left"}, *session).IgnoreError();
//   // in the next attempt, on every rank, collective:
//   MP_ASSIGN_OR_RETURN(auto state, TakeUpState(folder, job, generation, step, *session, comm));
//   if (state) session.FinishRestore(*state) ... else read the checkpoint
//
// `folder` is the job's folder on this host, on a file system in memory; empty: there is none.
// `job` is the job's uid.
#ifndef MILEPOST_WORKER_MEMORY_STATE_MEMORY_STATE_H_
#define MILEPOST_WORKER_MEMORY_STATE_MEMORY_STATE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/comm/communicator.h"
#include "engine/runtime/session/training_session.h"
#include "milepost/v1/trainer.pb.h"
#include "worker/memory_state/snapshot_file.h"

namespace milepost::worker {

std::vector<state::Interval> IntervalsOf(const std::vector<runtime::StateInterval>& intervals);

// Keeps the session's state at step(): everything that this rank holds. FAILED_PRECONDITION: the
// last step failed, and state_is_whole() is false. RESOURCE_EXHAUSTED: too little memory.
absl::Status KeepState(const std::string& folder, const SnapshotId& id,
                       runtime::TrainingSession& session);

// Looks for the newest state, of `least_step` or later, that all hosts together have completely.
// Fills the session's RestoreTargets with it, and returns what FinishRestore needs. Nullopt: there
// is none. Collective: every rank gets the same result. Errors are the communicator's. Blocks.
absl::StatusOr<std::optional<v1::TrainerState>> TakeUpState(const std::string& folder,
                                                            const std::string& job,
                                                            int64_t generation, int64_t least_step,
                                                            runtime::TrainingSession& session,
                                                            comm::Communicator& communicator);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_MEMORY_STATE_MEMORY_STATE_H_
