// Keeps every rank's state after every step in the memory of its own host and of another rank's
// host. So a rank, or a host, can be lost without losing a step. The job sets
// checkpoint.redundancy: 1. The method is that of in-memory checkpoints in Wang et al., "GEMINI",
// SOSP 2023.
//
//   MP_ASSIGN_OR_RETURN(auto copies, PeerCopies::Create(folder, {job, generation, rank},
//                                                      *session, *communicator, ...));
//   // after every step, on every rank:
//   MP_RETURN_IF_ERROR(copies->AfterStep(*session, *communicator));
//
// The step's state is copied to the host's memory at once. A thread sends the copy on while
// training goes on. There are two copies each of own and received state, written in turn, so that
// one moment is always whole everywhere. When copying takes longer than a step, some steps are not
// copied. They are the same ones on every rank.
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
#include "engine/runtime/session/training_session.h"
#include "worker/memory_state/peer_link.h"
#include "worker/memory_state/snapshot_file.h"

namespace milepost::worker {

class PeerCopies {
 public:
  // Allocates all the memory that it will need; RESOURCE_EXHAUSTED: there is too little.
  // `background` is a separate communicator of the same ranks as `communicator`, and null when
  // there is one rank. Collective.
  static absl::StatusOr<std::unique_ptr<PeerCopies>> Create(
      const std::string& folder, const SnapshotId& id, runtime::TrainingSession& session,
      comm::Communicator& communicator, std::unique_ptr<comm::Communicator> background);
  ~PeerCopies();

  // Collective. Blocks while the state is copied to the host's memory. Errors are those of the
  // session and of `communicator`. When the background communicator fails, no more copies are made.
  absl::Status AfterStep(runtime::TrainingSession& session, comm::Communicator& communicator);

  // The newest step of which every rank has both copies. Valid only after AfterStep.
  int64_t copied_step() const { return copied_step_; }
  // Waits for the copy that is being sent.
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
  PeerLink link_;
  PeerState peer_;
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
  std::thread thread_;  // declared last: it uses the other members
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_MEMORY_STATE_PEER_COPIES_H_
