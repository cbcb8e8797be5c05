#include "engine/comm/tcp_connect.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/poll.h"
#include "common/status_macros.h"
#include "engine/comm/address.h"

namespace milepost::comm {
namespace {

constexpr uint64_t kMagic = 0x316d6d6f63504d00;  // "\0MPcomm1"
// A connection that says nothing is not one of ours; it may not hold up those that are.
constexpr absl::Duration kGreetingTimeout = absl::Seconds(2);

// The first bytes on every connection, from the rank that connects. All hosts are little-endian.
struct Greeting {
  uint64_t magic = kMagic;
  uint64_t secret = 0;  // from the accepting rank's key in the store
  int32_t rank = 0;
  int32_t world = 0;
};

struct Endpoint {
  std::string address;
  std::string port;
  uint64_t secret = 0;
};

std::string KeyOf(int rank) { return absl::StrCat("tcp/", rank); }

std::string Pack(const Endpoint& endpoint) {
  return absl::StrCat(endpoint.address, " ", endpoint.port, " ", endpoint.secret);
}

absl::StatusOr<Endpoint> Unpack(absl::string_view text, int rank) {
  const std::vector<std::string> fields = absl::StrSplit(text, ' ');
  Endpoint endpoint;
  if (fields.size() != 3 || !absl::SimpleAtoi(fields[2], &endpoint.secret)) {
    return absl::InternalError(absl::StrCat("rank ", rank, " published no usable address"));
  }
  endpoint.address = fields[0];
  endpoint.port = fields[1];
  return endpoint;
}

absl::Status MakeReady(int fd) {
  const int on = 1;
  if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0 ||
      fcntl(fd, F_SETFL, O_NONBLOCK) != 0) {
    return absl::ErrnoToStatus(errno, "cannot configure a socket");
  }
  return absl::OkStatus();
}

struct AddressInfo {
  ~AddressInfo() {
    if (info != nullptr) freeaddrinfo(info);
  }
  addrinfo* info = nullptr;
};

absl::Status Lookup(const std::string& address, const std::string& port, AddressInfo* result) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  const int error = getaddrinfo(address.c_str(), port.c_str(), &hints, &result->info);
  if (error == 0) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("bad address ", address, " port ", port, ": ", gai_strerror(error)));
}

absl::StatusOr<UniqueFd> Listen(Endpoint* endpoint) {
  AddressInfo address;
  MP_RETURN_IF_ERROR(Lookup(endpoint->address, "0", &address));
  UniqueFd fd(socket(address.info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_storage bound;
  socklen_t bytes = sizeof(bound);
  if (!fd.ok() || bind(fd.get(), address.info->ai_addr, address.info->ai_addrlen) != 0 ||
      listen(fd.get(), kMaxTcpWorld) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &bytes) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot listen on ", endpoint->address));
  }
  char port[NI_MAXSERV];
  getnameinfo(reinterpret_cast<sockaddr*>(&bound), bytes, nullptr, 0, port, sizeof(port),
              NI_NUMERICSERV);
  endpoint->port = port;
  if (getrandom(&endpoint->secret, sizeof(endpoint->secret), 0) != sizeof(endpoint->secret)) {
    return absl::ErrnoToStatus(errno, "cannot draw a secret");
  }
  return fd;
}

absl::StatusOr<UniqueFd> Connect(const Endpoint& endpoint, const Greeting& greeting,
                                 absl::Time deadline) {
  AddressInfo address;
  MP_RETURN_IF_ERROR(Lookup(endpoint.address, endpoint.port, &address));
  UniqueFd fd(socket(address.info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.ok()) return absl::ErrnoToStatus(errno, "cannot make a socket");
  if (connect(fd.get(), address.info->ai_addr, address.info->ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return absl::UnavailableError(std::strerror(errno));
    if (!PollFd(fd.get(), POLLOUT, deadline)) {
      return absl::DeadlineExceededError("no connection in time");
    }
    int error = 0;
    socklen_t bytes = sizeof(error);
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) return absl::UnavailableError(std::strerror(error));
  }
  MP_RETURN_IF_ERROR(MakeReady(fd.get()));
  // A fresh connection's buffer has room for these few bytes.
  if (send(fd.get(), &greeting, sizeof(greeting), MSG_NOSIGNAL) != sizeof(greeting)) {
    return absl::UnavailableError("the connection broke at once");
  }
  return fd;
}

// The rank that greets on `fd`, or -1 when it is none of this group's.
int ReadGreeting(int fd, uint64_t secret, int world, absl::Time deadline) {
  Greeting greeting;
  size_t have = 0;
  while (have < sizeof(greeting)) {
    if (!PollFd(fd, POLLIN, deadline)) return -1;
    const ssize_t n =
        recv(fd, reinterpret_cast<char*>(&greeting) + have, sizeof(greeting) - have, MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return -1;
    have += n;
  }
  const bool ours = greeting.magic == kMagic && greeting.secret == secret &&
                    greeting.world == world && greeting.rank >= 0 && greeting.rank < world;
  return ours ? greeting.rank : -1;
}

// Waits for the connections of the `missing` ranks above this one.
absl::Status AcceptPeers(int listener, uint64_t secret, int rank, int missing, absl::Time deadline,
                         std::vector<UniqueFd>* sockets) {
  const int world = sockets->size();
  while (missing > 0) {
    if (!PollFd(listener, POLLIN, deadline)) {
      return absl::DeadlineExceededError(absl::StrCat(
          missing, " of ", world, " ranks have not connected to rank ", rank, " in time"));
    }
    UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.ok()) continue;  // it went away again
    const int peer =
        ReadGreeting(fd.get(), secret, world, std::min(deadline, absl::Now() + kGreetingTimeout));
    if (peer <= rank || (*sockets)[peer].ok()) continue;  // a stranger, or twice the same
    MP_RETURN_IF_ERROR(MakeReady(fd.get()));
    (*sockets)[peer] = std::move(fd);
    --missing;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<UniqueFd>> ConnectSockets(int rank, int world, KeyValueStore* store,
                                                     const TcpOptions& options) {
  const absl::Time deadline = absl::Now() + options.connect_timeout;
  Endpoint own;
  MP_ASSIGN_OR_RETURN(own.address, ResolveAddress(options.host, options.interface));
  MP_ASSIGN_OR_RETURN(const UniqueFd listener, Listen(&own));
  MP_RETURN_IF_ERROR(store->Put(KeyOf(rank), Pack(own)));
  std::vector<UniqueFd> sockets(world);
  // Every rank connects to those below it: the backlog takes the connection before it is accepted,
  // so nobody waits for anybody in a circle.
  for (int peer = 0; peer < rank; ++peer) {
    MP_ASSIGN_OR_RETURN(const std::string text, store->Get(KeyOf(peer), deadline));
    MP_ASSIGN_OR_RETURN(const Endpoint endpoint, Unpack(text, peer));
    auto fd =
        Connect(endpoint, {.secret = endpoint.secret, .rank = rank, .world = world}, deadline);
    if (!fd.ok()) {
      return Annotate(fd.status(), absl::StrCat("rank ", rank, " cannot connect to rank ", peer,
                                                " at ", endpoint.address, " port ", endpoint.port));
    }
    sockets[peer] = *std::move(fd);
  }
  MP_RETURN_IF_ERROR(
      AcceptPeers(listener.get(), own.secret, rank, world - 1 - rank, deadline, &sockets));
  return sockets;
}

}  // namespace milepost::comm
