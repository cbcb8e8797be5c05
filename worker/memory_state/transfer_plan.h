// Who gives what to whom when an attempt takes up the state that its hosts keep in memory. Pure.
//
//   auto moment = NewestWholeMoment(layout, holdings, least_step);   // none: read a checkpoint
//   std::vector<Move> moves = PlanMoves(layout, holdings, *moment);
//   for (auto& round : Rounds(moves, kMoveBytes)) ...            // each an Exchange
//
// Every rank makes the same plan of the same holdings.
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

// What belongs together: what one attempt had after one step.
struct Moment {
  int64_t step = 0;
  int64_t generation = 0;

  friend auto operator<=>(const Moment&, const Moment&) = default;  // older first
};
Moment MomentOf(const v1::MemorySnapshot& snapshot);

// The newest one, of `least_step` or later, of which the ranks hold every element between them.
std::optional<Moment> NewestWholeMoment(const state::StateLayout& layout,
                                        absl::Span<const v1::MemoryHoldings> holdings,
                                        int64_t least_step);

// Bytes that rank `to` is given by rank `from`; the same rank where it has them itself.
struct Move {
  int from = 0;
  int to = 0;
  int snapshot = 0;         // of holdings[from]
  int64_t from_offset = 0;  // bytes into that snapshot's
  int target = 0;           // of holdings[to].targets
  int64_t to_offset = 0;    // bytes into that interval's
  int64_t bytes = 0;

  friend bool operator==(const Move&, const Move&) = default;
};

// For every target each byte once; what several have comes from different ones, what a rank has
// itself from itself. `moment` is a whole one. Sorted by receiver and target.
std::vector<Move> PlanMoves(const state::StateLayout& layout,
                            absl::Span<const v1::MemoryHoldings> holdings, Moment moment);

// The moves between different ranks, cut into pieces of at most `most_bytes`, in rounds that have
// at most one piece from any rank to any other.
std::vector<std::vector<Move>> Rounds(absl::Span<const Move> moves, int64_t most_bytes);

// How far from a rank the one is that keeps a copy of its state: the same for all, so that as many
// copies as possible lie on another host. `hosts[r]`: where rank r runs. 0: there is only one rank.
int CopyDistance(absl::Span<const uint64_t> hosts);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_MEMORY_STATE_TRANSFER_PLAN_H_
