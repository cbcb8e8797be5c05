#include "worker/memory_state/peer_link.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "common/status_macros.h"
#include "milepost/v1/trainer.pb.h"
#include "worker/memory_state/snapshot_claims.h"
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

// What goes to link.to and comes from link.from at a time.
absl::Status SwapPiece(const PeerLink& link, absl::Span<const char> out, absl::Span<char> in,
                       comm::Communicator& communicator) {
  std::vector<comm::Communicator::Transfer> transfers;
  if (link.to == link.from) {
    transfers.push_back({link.to, out.data(), out.size(), in.data(), in.size()});
  } else {
    transfers.push_back({link.to, out.data(), out.size(), nullptr, 0});
    transfers.push_back({link.from, nullptr, 0, in.data(), in.size()});
  }
  return communicator.Exchange(transfers);
}

template <typename Span>
Span PieceAt(Span all, int64_t at) {
  const size_t begin = std::min(static_cast<size_t>(at), all.size());
  return all.subspan(begin, static_cast<size_t>(kPieceBytes));
}

}  // namespace

absl::StatusOr<PeerLink> FindPeers(comm::Communicator& communicator) {
  const uint64_t host = HostDigest();
  const int world = communicator.world();
  std::vector<uint64_t> hosts(static_cast<size_t>(world));
  hosts[static_cast<size_t>(communicator.rank())] = host;
  MP_RETURN_IF_ERROR(communicator.AllGather(hosts.data(), hosts.size() * sizeof host));
  const int distance = CopyDistance(hosts);
  return PeerLink{.to = (communicator.rank() + distance) % world,
                  .from = (communicator.rank() - distance + world) % world};
}

absl::StatusOr<PeerState> MeetPeers(const PeerLink& link, const state::StateLayout& layout,
                                    absl::Span<const state::Interval> own,
                                    comm::Communicator& communicator) {
  v1::MemoryHoldings told;
  for (const state::Interval& held : own) {
    v1::MemoryInterval* interval = told.add_targets();
    interval->set_tensor(held.tensor);
    interval->set_begin(held.begin);
    interval->set_end(held.end);
  }
  MP_ASSIGN_OR_RETURN(const std::vector<v1::MemoryHoldings> all,
                      GatherHoldings(told, communicator));
  PeerState peer;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    int64_t bytes = 0;
    for (const v1::MemoryInterval& entry : all[rank].targets()) {
      const state::Interval interval = {entry.tensor(), entry.begin(), entry.end()};
      MP_RETURN_IF_ERROR(layout.CheckInterval(interval));
      bytes += layout.BytesOf(interval);
      if (static_cast<int>(rank) == link.from) peer.intervals.push_back(interval);
    }
    peer.most_bytes = std::max(peer.most_bytes, bytes);
  }
  return peer;
}

absl::StatusOr<uint64_t> SwapCopies(const PeerLink& link, absl::Span<const char> own,
                                    uint64_t checksum, absl::Span<char> received,
                                    const PeerState& peer, comm::Communicator& communicator) {
  uint64_t expected = 0;
  MP_RETURN_IF_ERROR(SwapPiece(link, {reinterpret_cast<const char*>(&checksum), sizeof checksum},
                               {reinterpret_cast<char*>(&expected), sizeof expected},
                               communicator));
  for (int64_t at = 0; at < peer.most_bytes; at += kPieceBytes) {
    MP_RETURN_IF_ERROR(SwapPiece(link, PieceAt(own, at), PieceAt(received, at), communicator));
  }
  if (Xxh3(received.data(), received.size()) != expected) {
    return absl::DataLossError("a copy of another rank's state did not arrive as it was sent");
  }
  return expected;
}

}  // namespace milepost::worker
