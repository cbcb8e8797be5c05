// What the acceptor needs of TCP. Internal to rpc/. Thread-safe.
#ifndef MILEPOST_COORDINATOR_RPC_TCP_SOCKETS_H_
#define MILEPOST_COORDINATOR_RPC_TCP_SOCKETS_H_

#include <sys/socket.h>

#include <cstdint>
#include <string>

namespace milepost::coordinator {

// Whose limits count: an IPv4 address, or the network that a host of IPv6 has for itself.
std::string AddressOf(const sockaddr_storage& name);

// Since the connection was made; 0: not known.
int64_t BytesReceived(int fd);

// Ends a connection, and drops what has been received and not read: after shutdown() it would still
// be dealt with.
void Abort(int fd);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_TCP_SOCKETS_H_
