// Ranks as processes, over TCP with Gloo's transport.
//
//   MP_ASSIGN_OR_RETURN(auto communicator,
//                       ConnectGloo(rank, world, &store, {.host = "10.0.0.7"}));
//
// Gloo moves the bytes (asynchronous TCP pairs and one event thread per communicator); the
// algorithms are ours, because Gloo's own have no reduce-scatter with shards in rank order and do
// not add in rank order. Every rank exchanges its shards with every other directly: each byte
// crosses the wire once in a reduce-scatter and once in an all-gather, received into place.
#ifndef MILEPOST_ENGINE_COMM_GLOO_H_
#define MILEPOST_ENGINE_COMM_GLOO_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/comm/communicator.h"
#include "engine/comm/key_value_store.h"

namespace milepost::comm {

struct GlooOptions {
  CommunicatorOptions communicator;
  absl::Duration connect_timeout = absl::Seconds(30);  // until all ranks are connected
  // The address that this rank listens on and gives to its peers: an address or name of this host,
  // or, when `interface` is given, the first address of that network interface ("eth0").
  std::string host = "127.0.0.1";
  std::string interface;
};

inline constexpr int kMaxGlooWorld = 256;

// Bytes of receive scratch that a communicator allocates at connection, and never more.
size_t GlooScratchBytes(int world);

// Blocks until this rank is connected to every other, at most `connect_timeout`. `store` is used
// only during the call. UNAVAILABLE or DEADLINE_EXCEEDED when a peer cannot be reached;
// INVALID_ARGUMENT when the host or interface does not exist; the store's own errors otherwise.
// Ignores SIGPIPE for the process. A killed peer is noticed at once (its sockets close); a host
// that vanishes, by the time-out. No exception of Gloo's leaves it.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectGloo(int rank, int world, KeyValueStore* store,
                                                          const GlooOptions& options = {});

}  // namespace milepost::comm

#endif  // MILEPOST_ENGINE_COMM_GLOO_H_
