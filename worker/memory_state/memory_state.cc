#include "worker/memory_state/memory_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "worker/memory_state/snapshot_claims.h"
#include "worker/memory_state/transfer_plan.h"

namespace milepost::worker {
namespace {

constexpr int64_t kMoveBytes = 16 << 20;

// What a snapshot must be of.
struct Wanted {
  const state::StateLayout& layout;
  uint64_t tensors = 0;
  std::string job;
  v1::TrainerState state;  // seed, digest
};

bool IsOf(const FoundSnapshot& found, const Wanted& wanted) {
  const v1::MemorySnapshot& snapshot = found.snapshot;
  return snapshot.tensors() == wanted.tensors && snapshot.job() == wanted.job &&
         snapshot.state().seed() == wanted.state.seed() &&
         snapshot.state().spec_digest() == wanted.state.spec_digest() &&
         FitsLayout(found, wanted.layout);
}

void AddTargets(const std::vector<runtime::StateInterval>& targets, v1::MemoryHoldings* holdings) {
  for (const runtime::StateInterval& target : targets) {
    v1::MemoryInterval* interval = holdings->add_targets();
    interval->set_tensor(target.tensor);
    interval->set_begin(target.begin);
    interval->set_end(target.end);
  }
}

// Moves what this rank gives and takes.
absl::Status Exchange(absl::Span<const Move> moves, const std::vector<FoundSnapshot>& found,
                      const std::vector<runtime::StateInterval>& targets,
                      comm::Communicator& communicator) {
  const int rank = communicator.rank();
  const auto source = [&](const Move& move) {
    return found[move.snapshot].data + move.from_offset;
  };
  const auto target = [&](const Move& move) { return targets[move.target].data + move.to_offset; };
  for (const Move& move : moves) {
    if (move.from == rank && move.to == rank) std::memcpy(target(move), source(move), move.bytes);
  }
  for (const std::vector<Move>& round : Rounds(moves, kMoveBytes)) {
    std::vector<comm::Communicator::Transfer> transfers(communicator.world());
    for (const Move& move : round) {
      if (move.from == rank) {
        transfers[move.to].send = source(move);
        transfers[move.to].send_bytes = static_cast<size_t>(move.bytes);
      }
      if (move.to == rank) {
        transfers[move.from].receive = target(move);
        transfers[move.from].receive_bytes = static_cast<size_t>(move.bytes);
      }
    }
    for (int peer = 0; peer < communicator.world(); ++peer) transfers[peer].peer = peer;
    std::erase_if(transfers, [](const comm::Communicator::Transfer& transfer) {
      return transfer.send_bytes == 0 && transfer.receive_bytes == 0;
    });
    MP_RETURN_IF_ERROR(communicator.Exchange(transfers));
  }
  return absl::OkStatus();
}

v1::TrainerState StateOf(absl::Span<const v1::MemoryHoldings> holdings, Moment moment) {
  for (const v1::MemoryHoldings& holding : holdings) {
    for (const v1::MemorySnapshot& snapshot : holding.snapshots()) {
      if (MomentOf(snapshot) == moment) return snapshot.state();
    }
  }
  MP_CHECK(false) << "no snapshot of step " << moment.step;
  return {};
}

}  // namespace

std::vector<state::Interval> IntervalsOf(const std::vector<runtime::StateInterval>& intervals) {
  std::vector<state::Interval> result;
  result.reserve(intervals.size());
  for (const runtime::StateInterval& i : intervals) result.push_back({i.tensor, i.begin, i.end});
  return result;
}

absl::Status KeepState(const std::string& folder, const SnapshotId& id,
                       runtime::TrainingSession& session) {
  if (folder.empty()) return absl::FailedPreconditionError("there is no folder in memory");
  if (session.state_parts() != 1) {
    return absl::FailedPreconditionError("optimizer state is on disk");
  }
  if (session.plan().options.ModelRanks() > 1) {
    return absl::FailedPreconditionError("tensor ranks divide its tensors");
  }
  if (session.plan().options.powersgd_rank > 0) {
    return absl::FailedPreconditionError("the ranks' errors of train.powersgd differ");
  }
  if (session.plan().options.outer_every > 0) {
    return absl::FailedPreconditionError("the islands of train.sync differ");
  }
  if (!session.state_is_whole()) {
    return absl::FailedPreconditionError("its state was being changed when the step failed");
  }
  MP_RETURN_IF_ERROR(session.FetchState());
  const std::vector<runtime::StateInterval> held = session.RestoreTargets();
  MP_ASSIGN_OR_RETURN(auto file,
                      SnapshotFile::Create(folder, id, session.state_tensors(), IntervalsOf(held)));
  file->Begin();
  for (size_t i = 0; i < held.size(); ++i) {
    std::memcpy(file->data(i), held[i].data, file->bytes(i));
  }
  file->Commit(session.trainer_state());
  return absl::OkStatus();
}

absl::StatusOr<std::optional<v1::TrainerState>> TakeUpState(const std::string& folder,
                                                            const std::string& job,
                                                            int64_t generation, int64_t least_step,
                                                            runtime::TrainingSession& session,
                                                            comm::Communicator& communicator) {
  // On disk, or never kept (KeepState).
  const plan::PlanOptions& options = session.plan().options;
  if (session.state_parts() != 1 || options.ModelRanks() > 1 || options.powersgd_rank > 0 ||
      options.outer_every > 0) {
    return std::optional<v1::TrainerState>();
  }
  const std::vector<v1::TensorInfo>& tensors = session.state_tensors();
  MP_ASSIGN_OR_RETURN(const state::StateLayout layout, state::StateLayout::FromProto(tensors));
  const std::vector<runtime::StateInterval> targets = session.RestoreTargets();
  // The same on every rank, whenever it was told.
  MP_RETURN_IF_ERROR(communicator.AllReduce(absl::MakeSpan(&least_step, 1), comm::ReduceOp::kMax));
  const Wanted wanted = {layout, TensorsDigest(tensors), job, session.trainer_state()};
  MP_ASSIGN_OR_RETURN(
      const std::vector<FoundSnapshot> found,
      ClaimSnapshots(
          folder, generation, [&](const FoundSnapshot& one) { return IsOf(one, wanted); },
          communicator));
  v1::MemoryHoldings own = HoldingsOf(found);
  AddTargets(targets, &own);
  MP_ASSIGN_OR_RETURN(const std::vector<v1::MemoryHoldings> holdings,
                      GatherHoldings(own, communicator));
  const std::optional<Moment> moment = NewestWholeMoment(layout, holdings, least_step);
  if (!moment.has_value()) return std::optional<v1::TrainerState>();
  const std::vector<Move> moves = PlanMoves(layout, holdings, *moment);
  MP_RETURN_IF_ERROR(Exchange(moves, found, targets, communicator));
  return std::make_optional(StateOf(holdings, *moment));
}

}  // namespace milepost::worker
