// The short way to a coordinator on the same host. One that listens on 127.0.0.1 without TLS also
// listens on an abstract Unix socket, which is named after that address. Bytes take half the time
// of the CPU there that they take over TCP. As an address of loopback, such a name belongs to a
// network namespace, everybody there may connect to it, and it ends with its process.
//
//   UniqueFd fd = ListenLocally("127.0.0.1:7070");            // the coordinator
//   auto channel = MakeChannel(ShortestWay("127.0.0.1:7070"));  // who has much to send
//
// Thread-safe. Never blocks.
#ifndef MILEPOST_COMMON_RPC_LOCAL_SOCKET_H_
#define MILEPOST_COMMON_RPC_LOCAL_SOCKET_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/rpc/endpoint.h"
#include "common/unique_fd.h"

namespace milepost {

// For "127.0.0.1:7070" the socket's name. Empty: the address has none.
std::string LocalSocketName(absl::string_view address);

// Listens for who takes the short way to `address`. Not ok, without an error: there is none to this
// address, or no such socket on this system. UNAVAILABLE: another process has the name.
absl::StatusOr<UniqueFd> ListenLocally(absl::string_view address);

// The endpoint, or the same by the short way where somebody listens there now.
Endpoint ShortestWay(const Endpoint& endpoint);

}  // namespace milepost

#endif  // MILEPOST_COMMON_RPC_LOCAL_SOCKET_H_
