// Plans which rank sends what to which, when an attempt takes up the state in its hosts' memory.
// Pure.
//
//   auto moment = NewestWholeMoment(layout, holdings, least_step);   // none: read a checkpoint
//   std::vector<Move> moves = PlanMoves(layout, holdings, *moment);
//   for (auto& round : Rounds(moves, kMoveBytes)) ...            // each an Exchange
//
// Every rank makes the same plan from the same holdings.
#ifndef MILEPOST_WORKER_MEMORY_STATE_TRANSFER_PLAN_H_
#define MILEPOST_WORKER_MEMORY_STATE_TRANSFER_PLAN_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "engine/state/layout.h"
#include "milepost/v1/trainer.pb.h"

namespace milepost::worker {

// One attempt's state after one step. Snapshots of the same moment belong together.
struct Moment {
  int64_t step = 0;
  int64_t generation = 0;

  friend auto operator<=>(const Moment&, const Moment&) = default;  // older first
};
Moment MomentOf(const v1::MemorySnapshot& snapshot);

// The newest moment of which the ranks together hold every element. Its step is at least
// `least_step`. Nullopt: there is none.
std::optional<Moment> NewestWholeMoment(const state::StateLayout& layout,
                                        absl::Span<const v1::MemoryHoldings> holdings,
                                        int64_t least_step);

// Bytes that rank `from` gives to rank `to`. Both are the same where the rank already has them.
struct Move {
  int from = 0;
  int to = 0;
  int snapshot = 0;         // index in holdings[from]
  int64_t from_offset = 0;  // bytes from the start of that snapshot
  int target = 0;           // index in holdings[to].targets
  int64_t to_offset = 0;    // bytes from the start of that interval
  int64_t bytes = 0;

  friend bool operator==(const Move&, const Move&) = default;
};

// Covers every byte of every target exactly once. A rank takes from itself what it has. Bytes that
// several ranks have come from different ones in turn. `moment` must be whole. Sorted by receiver
// and target.
std::vector<Move> PlanMoves(const state::StateLayout& layout,
                            absl::Span<const v1::MemoryHoldings> holdings, Moment moment);

// The moves between different ranks, cut into pieces of at most `most_bytes` and arranged in
// rounds. A round has at most one piece from any rank to any other.
std::vector<std::vector<Move>> Rounds(absl::Span<const Move> moves, int64_t most_bytes);

// The distance from each rank to the rank that keeps a copy of its state. It is the same for all
// ranks, and puts as many copies as possible on another host. `hosts[r]` is where rank r runs. 0:
// there is only one rank.
int CopyDistance(absl::Span<const uint64_t> hosts);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_MEMORY_STATE_TRANSFER_PLAN_H_
