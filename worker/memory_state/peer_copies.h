// Every rank's state after every step in its host's memory and in another rank's, so that a rank,
// or a host, can be lost without losing a step (checkpoint.redundancy: 1; in-memory checkpoints as
// in Wang et al., "GEMINI", SOSP 2023).
//
//   MP_ASSIGN_OR_RETURN(auto copies, PeerCopies::Create(folder, {job, generation, rank},
//                                                      *session, *communicator, ...));
//   // after every step, on every rank:
//   MP_RETURN_IF_ERROR(copies->AfterStep(*session, *communicator));
//
// The step's state is copied to the host's memory at once; a thread sends it on while training goes
// on. Of own and received state there are two copies each, written by turns, so that one moment is
// whole everywhere whenever something is lost. Where copying takes longer than a step, some steps
// are not copied, the same ones on every rank.
#ifndef MILEPOST_WORKER_MEMORY_STATE_PEER_COPIES_H_
#define MILEPOST_WORKER_MEMORY_STATE_PEER_COPIES_H_

#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/comm/communicator.h"
#include "engine/runtime/session.h"
#include "worker/memory_state/snapshot_file.h"

namespace milepost::worker {

class PeerCopies {
 public:
  // Takes all the memory that it will need (RESOURCE_EXHAUSTED). `background` is one of its own
  // among the same ranks as `communicator`; null where there is one rank. Collective.
  static absl::StatusOr<std::unique_ptr<PeerCopies>> Create(
      const std::string& folder, const SnapshotId& id, runtime::TrainingSession& session,
      comm::Communicator& communicator, std::unique_ptr<comm::Communicator> background);
  ~PeerCopies();

  // Collective. Blocks for as long as a copy to the host's memory takes. The errors are the
  // session's and the communicator's; when the background's fails there are no more copies.
  absl::Status AfterStep(runtime::TrainingSession& session, comm::Communicator& communicator);

  // The newest step of which every rank has both copies. After AfterStep only.
  int64_t copied_step() const { return copied_step_; }
  // Waits for what is under way.
  void Finish();

 private:
  struct Slot {
    std::unique_ptr<SnapshotFile> own;
    std::unique_ptr<SnapshotFile> received;  // null: there is one rank
  };

  PeerCopies() = default;
  absl::Status MakeSlots(const std::string& folder, SnapshotId id,
                         runtime::TrainingSession& session);
  void Discard();
  absl::Status Meet(runtime::TrainingSession& session, comm::Communicator& communicator);
  void Work();
  absl::Status Send(Slot& slot, const v1::TrainerState& state);

  std::unique_ptr<comm::Communicator> background_;
  std::vector<v1::TensorInfo> tensors_;
  int to_ = 0;    // the rank that keeps this one's copy
  int from_ = 0;  // the one whose copy this one keeps
  std::vector<state::Interval> received_intervals_;
  int64_t most_bytes_ = 0;  // of any rank's state
  std::array<Slot, 2> slots_;
  int next_ = 0;  // slot of the next step's copy
  int64_t copied_step_ = 0;
  int64_t sending_step_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool busy_ = false;  // slot `slot_` is being sent
  bool failed_ = false;
  bool ending_ = false;
  int slot_ = 0;
  v1::TrainerState state_;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_MEMORY_STATE_PEER_COPIES_H_
