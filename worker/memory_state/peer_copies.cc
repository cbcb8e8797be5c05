#include "worker/memory_state/peer_copies.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/memory_state/memory_state.h"

namespace milepost::worker {
absl::StatusOr<std::unique_ptr<PeerCopies>> PeerCopies::Create(
    const std::string& folder, const SnapshotId& id, runtime::TrainingSession& session,
    comm::Communicator& communicator, std::unique_ptr<comm::Communicator> background) {
  auto copies = std::unique_ptr<PeerCopies>(new PeerCopies);
  copies->background_ = std::move(background);
  copies->tensors_ = session.state_tensors();
  MP_RETURN_IF_ERROR(copies->Meet(session, communicator));
  const absl::Status made = folder.empty()
                                ? absl::FailedPreconditionError("there is no folder in memory")
                                : copies->MakeSlots(folder, id, session);
  // Every rank has them or none.
  int64_t failed = made.ok() ? 0 : 1;
  MP_RETURN_IF_ERROR(communicator.AllReduce(absl::MakeSpan(&failed, 1), comm::ReduceOp::kMax));
  if (failed != 0) copies->Discard();
  MP_RETURN_IF_ERROR(made);
  if (failed != 0) return absl::ResourceExhaustedError("another rank has too little host memory");
  copies->thread_ = std::thread([raw = copies.get()] { raw->Work(); });
  return copies;
}

PeerCopies::~PeerCopies() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  if (background_ != nullptr) background_->Abort("no more copies are made");
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// Where the others run, and what the state to be received looks like.
absl::Status PeerCopies::Meet(runtime::TrainingSession& session, comm::Communicator& communicator) {
  MP_ASSIGN_OR_RETURN(link_, FindPeers(communicator));
  MP_ASSIGN_OR_RETURN(const state::StateLayout layout, state::StateLayout::FromProto(tensors_));
  MP_ASSIGN_OR_RETURN(
      peer_, MeetPeers(link_, layout, IntervalsOf(session.RestoreTargets()), communicator));
  return absl::OkStatus();
}

absl::Status PeerCopies::MakeSlots(const std::string& folder, SnapshotId id,
                                   runtime::TrainingSession& session) {
  const std::vector<state::Interval> held = IntervalsOf(session.RestoreTargets());
  for (size_t i = 0; i < slots_.size(); ++i) {
    id.which = absl::StrCat("own", i);
    MP_ASSIGN_OR_RETURN(slots_[i].own, SnapshotFile::Create(folder, id, tensors_, held));
    if (background_ == nullptr) continue;
    id.which = absl::StrCat("peer", i);
    MP_ASSIGN_OR_RETURN(slots_[i].received,
                        SnapshotFile::Create(folder, id, tensors_, peer_.intervals));
  }
  return absl::OkStatus();
}

void PeerCopies::Discard() {
  for (Slot& slot : slots_) {
    if (slot.own != nullptr) slot.own->Discard();
    if (slot.received != nullptr) slot.received->Discard();
  }
}

absl::Status PeerCopies::AfterStep(runtime::TrainingSession& session,
                                   comm::Communicator& communicator) {
  // 0: all copies are where they belong; 1: some are under way; 2: there will be no more.
  int64_t state = 0;
  {
    std::lock_guard lock(mutex_);
    state = failed_ ? 2 : busy_ ? 1 : 0;
  }
  MP_RETURN_IF_ERROR(communicator.AllReduce(absl::MakeSpan(&state, 1), comm::ReduceOp::kMax));
  if (state != 0) return absl::OkStatus();
  copied_step_ = sending_step_;
  MP_RETURN_IF_ERROR(session.FetchState());
  Slot& slot = slots_[next_];
  slot.own->Begin();
  if (slot.received != nullptr) slot.received->Begin();
  const std::vector<runtime::StateInterval> held = session.RestoreTargets();
  for (size_t i = 0; i < held.size(); ++i) {
    std::memcpy(slot.own->data(i), held[i].data, slot.own->bytes(i));
  }
  std::lock_guard lock(mutex_);
  state_ = session.trainer_state();
  sending_step_ = state_.step();
  slot_ = std::exchange(next_, 1 - next_);
  busy_ = true;
  changed_.notify_all();
  return absl::OkStatus();
}

void PeerCopies::Finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !busy_ || failed_; });
}

void PeerCopies::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return busy_ || ending_; });
    if (ending_) return;
    const v1::TrainerState state = state_;
    Slot& slot = slots_[slot_];
    lock.unlock();
    const absl::Status status = Send(slot, state);
    lock.lock();
    if (!status.ok() && !ending_) {
      spdlog::warn("no more copies of the state in other hosts' memory: {}",
                   std::string(status.message()));
    }
    failed_ = !status.ok();
    busy_ = false;
    changed_.notify_all();
    if (failed_) return;
  }
}

absl::Status PeerCopies::Send(Slot& slot, const v1::TrainerState& state) {
  const uint64_t checksum = slot.own->Checksum();
  slot.own->Commit(state, checksum);
  if (background_ == nullptr) return absl::OkStatus();
  MP_ASSIGN_OR_RETURN(
      const uint64_t received,
      SwapCopies(link_, slot.own->all(), checksum, slot.received->all(), peer_, *background_));
  slot.received->Commit(state, received);
  return absl::OkStatus();
}

}  // namespace milepost::worker
