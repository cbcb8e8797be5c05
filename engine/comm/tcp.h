// Ranks as processes, over TCP.
//
//   MP_ASSIGN_OR_RETURN(auto communicator,
//                       ConnectTcp(rank, world, &store, {.host = "10.0.0.7"}));
//
// There is one socket per pair of ranks, and no extra thread. The calling thread moves the bytes
// directly between the sockets and the callers' buffers, sending and receiving in turns. Every rank
// exchanges its shards with every other rank directly. Each byte crosses the wire once in a
// reduce-scatter and once in an all-gather.
#ifndef MILEPOST_ENGINE_COMM_TCP_H_
#define MILEPOST_ENGINE_COMM_TCP_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/comm/communicator.h"
#include "engine/comm/key_value_store.h"

namespace milepost::comm {

struct TcpOptions {
  CommunicatorOptions communicator;
  absl::Duration connect_timeout = absl::Seconds(30);  // until all ranks are connected
  // The address on which this rank listens, and which it gives to its peers. It is an address or
  // name of this host. With `interface` it is the first address of that network interface ("eth0").
  std::string host = "127.0.0.1";
  std::string interface;
  // Asked several times a second while ranks connect, on the calling thread, but not while the
  // store is waited for: true ends the call with CANCELLED. A rank that is awaited may have ended.
  // Empty: never.
  std::function<bool()> give_up;
};

inline constexpr int kMaxTcpWorld = 256;

// Bytes of receive scratch. A communicator allocates them when it connects, and never more.
size_t TcpScratchBytes(int world);

// Blocks until this rank is connected to every other rank, at most `connect_timeout`. `store` is
// used only during the call. UNAVAILABLE or DEADLINE_EXCEEDED: a peer cannot be reached.
// INVALID_ARGUMENT: the host or interface does not exist. CANCELLED: give_up. Otherwise the store's
// errors.
//
// Connections that do not know the secret in the store are refused. A killed peer is noticed at
// once, because its sockets close, whichever rank is being waited for. A host that vanishes is
// noticed by the time-out. Ranks that make different calls get INTERNAL.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectTcp(int rank, int world, KeyValueStore* store,
                                                         const TcpOptions& options = {});

}  // namespace milepost::comm

#endif  // MILEPOST_ENGINE_COMM_TCP_H_
