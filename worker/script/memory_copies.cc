#include "worker/script/memory_copies.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/status_macros.h"
#include "worker/memory_state/snapshot_claims.h"
#include "worker/memory_state/transfer_plan.h"

namespace milepost::worker {
namespace {

// Ranks wait for the one with the largest part. One that is lost is noticed at once.
constexpr absl::Duration kOthersCopyTime = absl::Minutes(10);

std::vector<state::Interval> IntervalsOf(const std::vector<state::TensorSlice>& slices) {
  std::vector<state::Interval> intervals;
  for (const state::TensorSlice& slice : slices) intervals.push_back(slice.interval);
  return intervals;
}

// Of a script, and as it says itself.
bool IsScriptsSave(const FoundSnapshot& found, const std::string& job) {
  const v1::MemorySnapshot& snapshot = found.snapshot;
  const std::vector<v1::TensorInfo> tensors(snapshot.infos().begin(), snapshot.infos().end());
  if (tensors.empty() || snapshot.job() != job || snapshot.tensors() != TensorsDigest(tensors)) {
    return false;
  }
  const auto layout = state::StateLayout::FromProto(tensors);
  return layout.ok() && FitsLayout(found, *layout);
}

v1::MemoryHoldings WithoutTensors(v1::MemoryHoldings holdings) {
  for (v1::MemorySnapshot& snapshot : *holdings.mutable_snapshots()) snapshot.clear_infos();
  return holdings;
}

// Lists of tensors, by digest.
using TensorLists = std::map<uint64_t, std::vector<v1::TensorInfo>>;

// Each list is told by the first rank that has it. Collective.
absl::StatusOr<TensorLists> GatherLists(const std::vector<FoundSnapshot>& found,
                                        const std::vector<v1::MemoryHoldings>& holdings,
                                        comm::Communicator& communicator) {
  std::set<uint64_t> told;
  for (int rank = 0; rank < communicator.rank(); ++rank) {
    for (const v1::MemorySnapshot& snapshot : holdings[static_cast<size_t>(rank)].snapshots()) {
      told.insert(snapshot.tensors());
    }
  }
  v1::MemoryHoldings own;
  for (const FoundSnapshot& one : found) {
    if (!told.insert(one.snapshot.tensors()).second) continue;
    v1::MemorySnapshot* snapshot = own.add_snapshots();
    snapshot->set_tensors(one.snapshot.tensors());
    *snapshot->mutable_infos() = one.snapshot.infos();
  }
  MP_ASSIGN_OR_RETURN(const std::vector<v1::MemoryHoldings> all, GatherHoldings(own, communicator));
  TensorLists lists;
  for (const v1::MemoryHoldings& of_rank : all) {
    for (const v1::MemorySnapshot& snapshot : of_rank.snapshots()) {
      lists.try_emplace(snapshot.tensors(), snapshot.infos().begin(), snapshot.infos().end());
    }
  }
  return lists;
}

// A save, as snapshots of it are recognised.
struct Save {
  Moment moment;
  uint64_t tensors = 0;

  friend auto operator<=>(const Save&, const Save&) = default;  // older first
};
Save SaveOf(const v1::MemorySnapshot& snapshot) { return {MomentOf(snapshot), snapshot.tensors()}; }

// The same, without the snapshots of other saves; numbers of snapshots change.
std::vector<v1::MemoryHoldings> Only(const std::vector<v1::MemoryHoldings>& holdings,
                                     const Save& save) {
  std::vector<v1::MemoryHoldings> only(holdings.size());
  for (size_t rank = 0; rank < holdings.size(); ++rank) {
    for (const v1::MemorySnapshot& snapshot : holdings[rank].snapshots()) {
      if (SaveOf(snapshot) == save) *only[rank].add_snapshots() = snapshot;
    }
  }
  return only;
}

std::optional<Save> NewestWhole(const std::vector<v1::MemoryHoldings>& holdings,
                                const TensorLists& lists, int64_t least_step) {
  std::set<Save> saves;
  for (const v1::MemoryHoldings& of_rank : holdings) {
    for (const v1::MemorySnapshot& snapshot : of_rank.snapshots()) saves.insert(SaveOf(snapshot));
  }
  for (auto save = saves.rbegin(); save != saves.rend(); ++save) {
    const auto tensors = lists.find(save->tensors);
    if (tensors == lists.end()) continue;
    const auto layout = state::StateLayout::FromProto(tensors->second);
    if (layout.ok() && NewestWholeMoment(*layout, Only(holdings, *save), least_step)) return *save;
  }
  return std::nullopt;
}

// Two snapshots of a save have the same intervals, or none in common: they are of one rank, or of
// two. The first who has a snapshot gives it.
std::vector<state::TensorSlice> ShareOf(int rank, const std::vector<v1::MemoryHoldings>& holdings,
                                        const std::vector<FoundSnapshot>& found,
                                        const state::StateLayout& layout, const Save& save) {
  const auto key = [](const v1::MemorySnapshot& snapshot) {
    std::string bytes;
    for (const v1::MemoryInterval& interval : snapshot.intervals()) {
      bytes += interval.SerializeAsString() + "|";
    }
    return bytes;
  };
  std::set<std::string> given;
  for (int before = 0; before < rank; ++before) {
    for (const v1::MemorySnapshot& snapshot : holdings[static_cast<size_t>(before)].snapshots()) {
      if (SaveOf(snapshot) == save) given.insert(key(snapshot));
    }
  }
  std::vector<state::TensorSlice> slices;
  for (const FoundSnapshot& one : found) {
    if (SaveOf(one.snapshot) != save || !given.insert(key(one.snapshot)).second) continue;
    const char* at = one.data;
    for (const v1::MemoryInterval& entry : one.snapshot.intervals()) {
      const state::Interval interval = {entry.tensor(), entry.begin(), entry.end()};
      slices.push_back({interval, const_cast<char*>(at)});  // read only
      at += layout.BytesOf(interval);
    }
  }
  std::sort(slices.begin(), slices.end(),
            [](const auto& a, const auto& b) { return a.interval < b.interval; });
  return slices;
}

// The same on every rank: the attempt begins with its checkpoint.
std::optional<SaveInMemory> TooMuchToTell(const absl::Status& status) {
  spdlog::warn("what the hosts' memory has is not taken up: {}", std::string(status.message()));
  return std::nullopt;
}

}  // namespace

absl::Status MemoryCopies::Connect() {
  if (options_.world == 1 || communicator_ != nullptr) return absl::OkStatus();
  MP_ASSIGN_OR_RETURN(std::unique_ptr<comm::Communicator> communicator, options_.connect());
  communicator->SetTimeout(kOthersCopyTime);
  const absl::MutexLock lock(&mutex_);
  communicator_ = std::move(communicator);
  if (aborted_) communicator_->Abort("no more copies are made");
  return absl::OkStatus();
}

void MemoryCopies::Abort() {
  const absl::MutexLock lock(&mutex_);
  aborted_ = true;
  if (communicator_ != nullptr) communicator_->Abort("no more copies are made");
}

absl::StatusOr<bool> MemoryCopies::Any(bool here) {
  int64_t any = here ? 1 : 0;
  if (communicator_ != nullptr) {
    MP_RETURN_IF_ERROR(communicator_->AllReduce(absl::MakeSpan(&any, 1), comm::ReduceOp::kMax));
  }
  return any != 0;
}

absl::Status MemoryCopies::CheckStep(int64_t step) {
  int64_t bounds[] = {step, -step};
  if (communicator_ != nullptr) {
    MP_RETURN_IF_ERROR(communicator_->AllReduce(absl::MakeSpan(bounds), comm::ReduceOp::kMax));
  }
  if (bounds[0] == -bounds[1]) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("ranks copy the saves of steps ", -bounds[1], " and ", bounds[0]));
}

absl::Status MemoryCopies::MakeFiles(const std::vector<v1::TensorInfo>& tensors,
                                     const std::vector<state::Interval>& intervals, Slot& slot) {
  if (options_.folder.empty()) {
    return absl::FailedPreconditionError(
        "the worker keeps nothing in memory: see its --memory-dir");
  }
  SnapshotId id = options_.id;
  id.which = absl::StrCat("own", next_);
  MP_ASSIGN_OR_RETURN(slot.own, SnapshotFile::Create(options_.folder, id, tensors, intervals,
                                                     /*tells_tensors=*/true));
  if (communicator_ == nullptr) return absl::OkStatus();
  id.which = absl::StrCat("peer", next_);
  MP_ASSIGN_OR_RETURN(slot.received,
                      SnapshotFile::Create(options_.folder, id, tensors, slot.peer.intervals,
                                           /*tells_tensors=*/true));
  return absl::OkStatus();
}

absl::Status MemoryCopies::MakeSlot(const std::vector<v1::TensorInfo>& tensors,
                                    const std::vector<state::Interval>& intervals) {
  Slot& slot = slots_[next_];
  const uint64_t digest = TensorsDigest(tensors);
  MP_ASSIGN_OR_RETURN(const bool other, Any(slot.tensors != digest || slot.intervals != intervals));
  if (!other) return absl::OkStatus();
  for (auto* file : {&slot.own, &slot.received}) {  // there may be no room for both
    if (*file != nullptr) (*file)->Discard();
  }
  slot = {};
  if (communicator_ != nullptr) {
    MP_ASSIGN_OR_RETURN(const state::StateLayout layout, state::StateLayout::FromProto(tensors));
    MP_ASSIGN_OR_RETURN(link_, FindPeers(*communicator_));
    MP_ASSIGN_OR_RETURN(slot.peer, MeetPeers(link_, layout, intervals, *communicator_));
  }
  const absl::Status made = MakeFiles(tensors, intervals, slot);
  MP_ASSIGN_OR_RETURN(const bool failed, Any(!made.ok()));
  if (failed) {
    for (auto* file : {&slot.own, &slot.received}) {
      if (*file != nullptr) (*file)->Discard();
    }
    slot = {};
  }
  MP_RETURN_IF_ERROR(made);
  if (failed) return absl::ResourceExhaustedError("another rank has too little host memory");
  slot.tensors = digest;
  slot.intervals = intervals;
  return absl::OkStatus();
}

absl::Status MemoryCopies::Fill(const Slot& slot, int64_t step,
                                const std::vector<state::TensorSlice>& slices) {
  v1::TrainerState state;
  state.set_step(step);
  slot.own->Begin();
  if (slot.received != nullptr) slot.received->Begin();
  for (size_t i = 0; i < slices.size(); ++i) {
    std::memcpy(slot.own->data(i), slices[i].data, slot.own->bytes(i));
  }
  const uint64_t checksum = slot.own->Checksum();
  slot.own->Commit(state, checksum);
  if (slot.received == nullptr) return absl::OkStatus();
  MP_ASSIGN_OR_RETURN(const uint64_t received,
                      SwapCopies(link_, slot.own->all(), checksum, slot.received->all(), slot.peer,
                                 *communicator_));
  slot.received->Commit(state, received);
  return absl::OkStatus();
}

absl::Status MemoryCopies::Keep(int64_t step, const std::vector<v1::TensorInfo>& tensors,
                                const std::vector<state::TensorSlice>& slices) {
  MP_RETURN_IF_ERROR(Connect());
  MP_RETURN_IF_ERROR(CheckStep(step));
  MP_RETURN_IF_ERROR(MakeSlot(tensors, IntervalsOf(slices)));
  const absl::Status filled = Fill(slots_[next_], step, slices);
  // Nobody writes over the save before while one lacks this one.
  MP_ASSIGN_OR_RETURN(const bool failed, Any(!filled.ok()));
  MP_RETURN_IF_ERROR(filled);
  if (failed) return absl::DataLossError("another rank's copy was not made");
  next_ = 1 - next_;
  // Those of earlier attempts are no longer needed.
  if (!std::exchange(kept_, true)) ForgetState(options_.folder, options_.id.generation);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<SaveInMemory>> TakeUpSave(const std::string& folder,
                                                       const std::string& job, int64_t generation,
                                                       int64_t least_step,
                                                       comm::Communicator& communicator) {
  // The same on every rank, whenever it was told.
  MP_RETURN_IF_ERROR(communicator.AllReduce(absl::MakeSpan(&least_step, 1), comm::ReduceOp::kMax));
  SaveInMemory save;
  MP_ASSIGN_OR_RETURN(
      save.bytes,
      ClaimSnapshots(
          folder, generation, [&](const FoundSnapshot& found) { return IsScriptsSave(found, job); },
          communicator));
  const auto holdings = GatherHoldings(WithoutTensors(HoldingsOf(save.bytes)), communicator);
  if (absl::IsInternal(holdings.status())) return TooMuchToTell(holdings.status());
  MP_RETURN_IF_ERROR(holdings.status());
  const auto lists = GatherLists(save.bytes, *holdings, communicator);
  if (absl::IsInternal(lists.status())) return TooMuchToTell(lists.status());
  MP_RETURN_IF_ERROR(lists.status());
  const std::optional<Save> newest = NewestWhole(*holdings, *lists, least_step);
  if (!newest.has_value()) return std::optional<SaveInMemory>();
  save.step = newest->moment.step;
  save.tensors = lists->at(newest->tensors);
  MP_ASSIGN_OR_RETURN(const state::StateLayout layout, state::StateLayout::FromProto(save.tensors));
  save.slices = ShareOf(communicator.rank(), *holdings, save.bytes, layout, *newest);
  return std::make_optional(std::move(save));
}

}  // namespace milepost::worker
