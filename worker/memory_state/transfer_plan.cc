#include "worker/memory_state/transfer_plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "common/check.h"

namespace milepost::worker {
namespace {

// An interval in some rank's memory.
struct Held {
  int64_t begin = 0;
  int64_t end = 0;
  int rank = 0;
  int snapshot = 0;
  int64_t offset = 0;  // bytes into the snapshot's
};

using HeldByTensor = std::vector<std::vector<Held>>;  // each sorted by begin

state::Interval IntervalOf(const v1::MemoryInterval& interval) {
  return {interval.tensor(), interval.begin(), interval.end()};
}

// Snapshot `index` of the rank.
void AddSnapshot(const state::StateLayout& layout, const v1::MemorySnapshot& snapshot, int rank,
                 int index, HeldByTensor* held) {
  int64_t offset = 0;
  for (const v1::MemoryInterval& entry : snapshot.intervals()) {
    const state::Interval interval = IntervalOf(entry);
    (*held)[interval.tensor].push_back({interval.begin, interval.end, rank, index, offset});
    offset += layout.BytesOf(interval);
  }
}

HeldByTensor Collect(const state::StateLayout& layout,
                     absl::Span<const v1::MemoryHoldings> holdings, Moment moment) {
  HeldByTensor held(layout.tensors().size());
  for (int rank = 0; rank < static_cast<int>(holdings.size()); ++rank) {
    for (int s = 0; s < holdings[rank].snapshots_size(); ++s) {
      const v1::MemorySnapshot& snapshot = holdings[rank].snapshots(s);
      if (MomentOf(snapshot) == moment) AddSnapshot(layout, snapshot, rank, s, &held);
    }
  }
  for (std::vector<Held>& pieces : held) {
    std::stable_sort(pieces.begin(), pieces.end(),
                     [](const Held& a, const Held& b) { return a.begin < b.begin; });
  }
  return held;
}

bool IsWhole(const state::StateLayout& layout, const HeldByTensor& held) {
  for (size_t t = 0; t < held.size(); ++t) {
    int64_t covered = 0;
    for (const Held& piece : held[t]) {
      if (piece.begin > covered) return false;
      covered = std::max(covered, piece.end);
    }
    if (covered < layout.tensor(static_cast<int32_t>(t)).elements) return false;
  }
  return true;
}

// One that has element `at` of the tensor: the receiver, or by turns.
const Held& Choose(const std::vector<Held>& pieces, int64_t at, int receiver, int target) {
  std::vector<const Held*> able;
  for (const Held& piece : pieces) {
    if (piece.begin > at) break;
    if (piece.end <= at) continue;
    if (piece.rank == receiver) return piece;
    able.push_back(&piece);
  }
  MP_CHECK(!able.empty()) << "element " << at << " is nowhere";
  return *able[static_cast<size_t>(receiver + target) % able.size()];
}

}  // namespace

Moment MomentOf(const v1::MemorySnapshot& snapshot) {
  return {snapshot.state().step(), snapshot.generation()};
}

std::optional<Moment> NewestWholeMoment(const state::StateLayout& layout,
                                        absl::Span<const v1::MemoryHoldings> holdings,
                                        int64_t least_step) {
  std::set<Moment> moments;
  for (const v1::MemoryHoldings& holding : holdings) {
    for (const v1::MemorySnapshot& snapshot : holding.snapshots()) {
      if (snapshot.state().step() >= least_step) moments.insert(MomentOf(snapshot));
    }
  }
  for (auto moment = moments.rbegin(); moment != moments.rend(); ++moment) {
    if (IsWhole(layout, Collect(layout, holdings, *moment))) return *moment;
  }
  return std::nullopt;
}

std::vector<Move> PlanMoves(const state::StateLayout& layout,
                            absl::Span<const v1::MemoryHoldings> holdings, Moment moment) {
  const HeldByTensor held = Collect(layout, holdings, moment);
  std::vector<Move> moves;
  for (int to = 0; to < static_cast<int>(holdings.size()); ++to) {
    for (int target = 0; target < holdings[to].targets_size(); ++target) {
      const state::Interval wanted = IntervalOf(holdings[to].targets(target));
      const int64_t size = ByteSize(layout.tensor(wanted.tensor).dtype);
      for (int64_t at = wanted.begin; at < wanted.end;) {
        const Held& piece = Choose(held[wanted.tensor], at, to, target);
        const int64_t end = std::min(wanted.end, piece.end);
        moves.push_back({.from = piece.rank,
                         .to = to,
                         .snapshot = piece.snapshot,
                         .from_offset = piece.offset + (at - piece.begin) * size,
                         .target = target,
                         .to_offset = (at - wanted.begin) * size,
                         .bytes = (end - at) * size});
        at = end;
      }
    }
  }
  return moves;
}

std::vector<std::vector<Move>> Rounds(absl::Span<const Move> moves, int64_t most_bytes) {
  std::vector<std::vector<Move>> rounds;
  std::map<std::pair<int, int>, size_t> next;  // round of a pair's next piece
  for (Move move : moves) {
    if (move.from == move.to) continue;
    for (int64_t left = move.bytes; left > 0; left -= move.bytes) {
      move.bytes = std::min(left, most_bytes);
      const size_t round = next[{move.from, move.to}]++;
      if (round == rounds.size()) rounds.emplace_back();
      rounds[round].push_back(move);
      move.from_offset += move.bytes;
      move.to_offset += move.bytes;
    }
  }
  return rounds;
}

int CopyDistance(absl::Span<const uint64_t> hosts) {
  const size_t world = hosts.size();
  int best = 0;
  int best_apart = -1;
  for (size_t distance = 1; distance < world; ++distance) {
    int apart = 0;
    for (size_t rank = 0; rank < world; ++rank) {
      apart += hosts[rank] != hosts[(rank + distance) % world];
    }
    if (apart <= best_apart) continue;
    best = static_cast<int>(distance);
    best_apart = apart;
  }
  return best;
}

}  // namespace milepost::worker
