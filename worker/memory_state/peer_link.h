// The neighbours of a rank for copies of state: the rank that keeps its copies, and the rank whose
// copies it keeps.
//
//   MP_ASSIGN_OR_RETURN(const PeerLink link, FindPeers(communicator));
//   MP_ASSIGN_OR_RETURN(const PeerState peer, MeetPeers(link, layout, intervals, communicator));
//   MP_ASSIGN_OR_RETURN(uint64_t sum,
//                       SwapCopies(link, own, own_sum, received, peer, communicator));
//
// All are collective, and block. Errors are the communicator's unless said otherwise.
#ifndef MILEPOST_WORKER_MEMORY_STATE_PEER_LINK_H_
#define MILEPOST_WORKER_MEMORY_STATE_PEER_LINK_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/comm/communicator.h"
#include "engine/state/layout.h"

namespace milepost::worker {

struct PeerLink {
  int to = 0;    // keeps this rank's copies
  int from = 0;  // its copies are kept here
};

// As many copies as possible are on another host. With one rank both are that rank.
absl::StatusOr<PeerLink> FindPeers(comm::Communicator& communicator);

// What is to be received.
struct PeerState {
  std::vector<state::Interval> intervals;  // of link.from
  int64_t most_bytes = 0;                  // the largest state of any rank
};
absl::StatusOr<PeerState> MeetPeers(const PeerLink& link, const state::StateLayout& layout,
                                    absl::Span<const state::Interval> own,
                                    comm::Communicator& communicator);

// Sends `own`, with its checksum, to link.to, and fills `received` with what link.from sends.
// Returns the checksum of that. DATA_LOSS: it did not arrive as it was sent.
absl::StatusOr<uint64_t> SwapCopies(const PeerLink& link, absl::Span<const char> own,
                                    uint64_t checksum, absl::Span<char> received,
                                    const PeerState& peer, comm::Communicator& communicator);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_MEMORY_STATE_PEER_LINK_H_
