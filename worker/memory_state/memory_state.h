// State of a job that its hosts keep in memory, so that an attempt goes on where the one before it
// was lost, without reading a checkpoint:
// - a rank that loses its peers, and was not changing its state just then, leaves it there
//   (KeepState): enough where the ranks that are left have all state between them (stage 0, hybrid
//   sharding);
// - with checkpoint.redundancy every rank's state is there after every step, and again in another
//   rank's host (peer_copies.h).
//
//   // before leaving:
//   KeepState(folder, {job, generation, rank, "left"}, *session).IgnoreError();
//   // in the next attempt, on every rank, collective:
//   MP_ASSIGN_OR_RETURN(auto state, TakeUpState(folder, job, generation, step, *session, comm));
//   if (state) session.FinishRestore(*state) ... else read the checkpoint
//
// `folder` is the job's, on a file system in memory, of this host; empty: there is none. `job`:
// uid.
#ifndef MILEPOST_WORKER_MEMORY_STATE_MEMORY_STATE_H_
#define MILEPOST_WORKER_MEMORY_STATE_MEMORY_STATE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/comm/communicator.h"
#include "engine/runtime/session.h"
#include "milepost/v1/trainer.pb.h"
#include "worker/memory_state/snapshot_file.h"

namespace milepost::worker {

std::vector<state::Interval> IntervalsOf(const std::vector<runtime::StateInterval>& intervals);

// The session's state of step(), all that this rank holds. Where its last step failed:
// FAILED_PRECONDITION unless state_is_whole(). RESOURCE_EXHAUSTED: too little memory.
absl::Status KeepState(const std::string& folder, const SnapshotId& id,
                       runtime::TrainingSession& session);

// Fills the session's RestoreTargets with the newest state, of `least_step` or later, that all
// hosts together have whole, and returns what FinishRestore needs with it; nullopt where there is
// none. Collective: the same result on every rank. Errors are the communicator's. Blocks.
absl::StatusOr<std::optional<v1::TrainerState>> TakeUpState(const std::string& folder,
                                                            const std::string& job,
                                                            int64_t generation, int64_t least_step,
                                                            runtime::TrainingSession& session,
                                                            comm::Communicator& communicator);

// Snapshots of generations before this one: they are not needed any more.
void ForgetState(const std::string& folder, int64_t generation);

// Every rank's bytes, by rank. Collective. INTERNAL, on every rank: more than 64 MiB.
absl::StatusOr<std::vector<std::string>> GatherBytes(const std::string& bytes,
                                                     comm::Communicator& communicator);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_MEMORY_STATE_MEMORY_STATE_H_
