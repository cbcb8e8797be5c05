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
#include <functional>
#include <list>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/poll.h"
#include "common/status_macros.h"
#include "engine/comm/address.h"

namespace milepost::comm {
namespace {

constexpr uint64_t kMagic = 0x316d6d6f63504d00;                        // "\0MPcomm1"
constexpr size_t kMostGreeters = 128;                                  // at a time
constexpr absl::Duration kBetweenQuestions = absl::Milliseconds(100);  // of TcpOptions::give_up

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

// How long to wait for ranks, and whether to.
struct Patience {
  absl::Time deadline;
  const std::function<bool()>& give_up;

  absl::Status Ask() const {
    if (!give_up || !give_up()) return absl::OkStatus();
    return absl::CancelledError("told to give up while the ranks connect");
  }
  // When to ask again.
  absl::Time Next() const {
    return give_up ? std::min(deadline, absl::Now() + kBetweenQuestions) : deadline;
  }
};

absl::Status AwaitConnection(int fd, const Patience& patience) {
  while (!PollFd(fd, POLLOUT, patience.Next())) {
    MP_RETURN_IF_ERROR(patience.Ask());
    if (absl::Now() >= patience.deadline) {
      return absl::DeadlineExceededError("no connection in time");
    }
  }
  return absl::OkStatus();
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

// A socket that does not block, connected to the address.
absl::Status ConnectTo(const addrinfo& address, int fd, const Patience& patience) {
  if (connect(fd, address.ai_addr, address.ai_addrlen) == 0) return absl::OkStatus();
  if (errno != EINPROGRESS) return absl::UnavailableError(std::strerror(errno));
  MP_RETURN_IF_ERROR(AwaitConnection(fd, patience));
  int error = 0;
  socklen_t bytes = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
  return error == 0 ? absl::OkStatus() : absl::UnavailableError(std::strerror(error));
}

absl::StatusOr<UniqueFd> Connect(const Endpoint& endpoint, const Greeting& greeting,
                                 const Patience& patience) {
  AddressInfo address;
  MP_RETURN_IF_ERROR(Lookup(endpoint.address, endpoint.port, &address));
  UniqueFd fd(socket(address.info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.ok()) return absl::ErrnoToStatus(errno, "cannot make a socket");
  MP_RETURN_IF_ERROR(ConnectTo(*address.info, fd.get(), patience));
  MP_RETURN_IF_ERROR(MakeReady(fd.get()));
  // A fresh connection's buffer has room for these few bytes.
  if (send(fd.get(), &greeting, sizeof(greeting), MSG_NOSIGNAL) != sizeof(greeting)) {
    return absl::UnavailableError("the connection broke at once");
  }
  return fd;
}

// A connection that was accepted and has not said all of its greeting.
struct Greeter {
  UniqueFd fd;
  Greeting greeting;
  size_t have = 0;  // bytes of it
};

enum class Heard : uint8_t { kPart, kAll, kNothingMore };

Heard Hear(Greeter* greeter) {
  while (greeter->have < sizeof(Greeting)) {
    const ssize_t n =
        recv(greeter->fd.get(), reinterpret_cast<char*>(&greeter->greeting) + greeter->have,
             sizeof(Greeting) - greeter->have, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return Heard::kPart;
    if (n <= 0) return Heard::kNothingMore;
    greeter->have += static_cast<size_t>(n);
  }
  return Heard::kAll;
}

// The ranks above this one, as they connect. Strangers may connect too: they are heard beside the
// ranks, and the one that came first makes room. Nobody else has to go: a rank's greeting may be on
// its way for long, and a rank that has greeted takes itself for connected.
class Reception {
 public:
  Reception(int listener, uint64_t secret, int rank, std::vector<UniqueFd>* sockets)
      : listener_(listener),
        secret_(secret),
        rank_(rank),
        world_(static_cast<int>(sockets->size())),
        sockets_(sockets) {}

  // Until the `missing` ones are all there.
  absl::Status Await(int missing, const Patience& patience) {
    while (missing > 0) {
      MP_RETURN_IF_ERROR(patience.Ask());
      if (absl::Now() >= patience.deadline) {
        return absl::DeadlineExceededError(absl::StrCat(
            missing, " of ", world_, " ranks have not connected to rank ", rank_, " in time"));
      }
      WaitForNews(patience.Next());
      Accept();
      for (auto it = greeters_.begin(); it != greeters_.end();) {
        const Heard heard = Hear(&*it);
        if (heard == Heard::kPart) {
          ++it;
          continue;
        }
        if (heard == Heard::kAll && IsMissing(it->greeting)) {
          MP_RETURN_IF_ERROR(MakeReady(it->fd.get()));
          (*sockets_)[static_cast<size_t>(it->greeting.rank)] = std::move(it->fd);
          --missing;
        }
        it = greeters_.erase(it);
      }
    }
    return absl::OkStatus();
  }

 private:
  void WaitForNews(absl::Time deadline) const {
    std::vector<pollfd> entries = {{listener_, POLLIN, 0}};
    for (const Greeter& greeter : greeters_) entries.push_back({greeter.fd.get(), POLLIN, 0});
    poll(entries.data(), entries.size(), PollTimeoutMillis(deadline - absl::Now()));
  }

  void Accept() {
    UniqueFd fd(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.ok()) return;  // there is none, or it went away again
    if (greeters_.size() == kMostGreeters) greeters_.pop_front();
    greeters_.push_back({std::move(fd), {}, 0});
  }

  // Neither a stranger nor one that is there already.
  bool IsMissing(const Greeting& greeting) const {
    return greeting.magic == kMagic && greeting.secret == secret_ && greeting.world == world_ &&
           greeting.rank > rank_ && greeting.rank < world_ &&
           !(*sockets_)[static_cast<size_t>(greeting.rank)].ok();
  }

  const int listener_;
  const uint64_t secret_;
  const int rank_;
  const int world_;
  std::vector<UniqueFd>* const sockets_;
  std::list<Greeter> greeters_;  // the oldest first
};

}  // namespace

absl::StatusOr<std::vector<UniqueFd>> ConnectSockets(int rank, int world, KeyValueStore* store,
                                                     const TcpOptions& options) {
  const absl::Time deadline = absl::Now() + options.connect_timeout;
  const Patience patience = {deadline, options.give_up};
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
        Connect(endpoint, {.secret = endpoint.secret, .rank = rank, .world = world}, patience);
    if (!fd.ok()) {
      return Annotate(fd.status(), absl::StrCat("rank ", rank, " cannot connect to rank ", peer,
                                                " at ", endpoint.address, " port ", endpoint.port));
    }
    sockets[peer] = *std::move(fd);
  }
  Reception reception(listener.get(), own.secret, rank, &sockets);
  MP_RETURN_IF_ERROR(reception.Await(world - 1 - rank, patience));
  return sockets;
}

}  // namespace milepost::comm
