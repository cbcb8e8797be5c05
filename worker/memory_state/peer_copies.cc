#include "worker/memory_state/peer_copies.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/checksum.h"
#include "common/status_macros.h"
#include "worker/memory_state/memory_state.h"
#include "worker/memory_state/transfer_plan.h"

namespace milepost::worker {
namespace {

constexpr int64_t kPieceBytes = 16 << 20;

// Of the host that this process runs on: images of hosts may share their names.
uint64_t HostDigest() {
  std::array<char, 256> name = {};
  (void)gethostname(name.data(), name.size() - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return Xxh3(absl::StrCat(name.data(), "/", boot));
}

}  // namespace

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
  v1::MemoryHoldings own;
  for (const runtime::StateInterval& held : session.RestoreTargets()) {
    v1::MemoryInterval* interval = own.add_targets();
    interval->set_tensor(held.tensor);
    interval->set_begin(held.begin);
    interval->set_end(held.end);
  }
  const uint64_t host = HostDigest();
  std::string told(reinterpret_cast<const char*>(&host), sizeof host);
  MP_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                      GatherBytes(told + own.SerializeAsString(), communicator));
  std::vector<uint64_t> hosts;
  for (const std::string& of_rank : all) {
    MP_CHECK(of_rank.size() >= sizeof host) << of_rank.size();
    std::memcpy(&hosts.emplace_back(), of_rank.data(), sizeof host);
  }
  const int world = communicator.world();
  const int distance = CopyDistance(hosts);
  to_ = (communicator.rank() + distance) % world;
  from_ = (communicator.rank() - distance + world) % world;
  MP_ASSIGN_OR_RETURN(const state::StateLayout layout, state::StateLayout::FromProto(tensors_));
  for (int rank = 0; rank < world; ++rank) {
    v1::MemoryHoldings holdings;
    if (!holdings.ParseFromString(all[rank].substr(sizeof host))) {
      return absl::InternalError("a rank told nonsense of its state");
    }
    int64_t bytes = 0;
    for (const v1::MemoryInterval& entry : holdings.targets()) {
      const state::Interval interval = {entry.tensor(), entry.begin(), entry.end()};
      MP_RETURN_IF_ERROR(layout.CheckInterval(interval));
      bytes += layout.BytesOf(interval);
      if (rank == from_) received_intervals_.push_back(interval);
    }
    most_bytes_ = std::max(most_bytes_, bytes);
  }
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
                        SnapshotFile::Create(folder, id, tensors_, received_intervals_));
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
  std::array<uint64_t, 1> sum = {slot.own->Checksum()};
  slot.own->Commit(state, sum[0]);
  if (background_ == nullptr) return absl::OkStatus();
  std::array<uint64_t, 1> expected = {};
  const auto exchange = [&](const char* out, int64_t out_bytes, char* in, int64_t in_bytes) {
    std::vector<comm::Communicator::Transfer> transfers;
    const auto sent = static_cast<size_t>(std::max<int64_t>(out_bytes, 0));
    const auto received = static_cast<size_t>(std::max<int64_t>(in_bytes, 0));
    if (to_ == from_) {
      transfers.push_back({to_, out, sent, in, received});
    } else {
      transfers.push_back({to_, out, sent, nullptr, 0});
      transfers.push_back({from_, nullptr, 0, in, received});
    }
    return background_->Exchange(transfers);
  };
  MP_RETURN_IF_ERROR(exchange(reinterpret_cast<const char*>(sum.data()), sizeof sum,
                              reinterpret_cast<char*>(expected.data()), sizeof expected));
  const absl::Span<char> own = slot.own->all();
  const absl::Span<char> received = slot.received->all();
  for (int64_t at = 0; at < most_bytes_; at += kPieceBytes) {
    const auto piece = [at](absl::Span<char> all) {
      return std::min(kPieceBytes, static_cast<int64_t>(all.size()) - at);
    };
    const auto begin = [at](absl::Span<char> all) {
      return all.data() + std::min(at, static_cast<int64_t>(all.size()));
    };
    MP_RETURN_IF_ERROR(exchange(begin(own), piece(own), begin(received), piece(received)));
  }
  if (slot.received->Checksum() != expected[0]) {
    return absl::DataLossError("a copy of another rank's state did not arrive as it was sent");
  }
  slot.received->Commit(state, expected[0]);
  return absl::OkStatus();
}

}  // namespace milepost::worker
