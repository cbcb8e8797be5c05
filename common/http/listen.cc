#include "common/http/listen.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace milepost {
namespace {

constexpr int kBacklog = 4096;

bool IsWildcard(const addrinfo& address) {
  if (address.ai_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address.ai_addr);
    return v4->sin_addr.s_addr == htonl(INADDR_ANY);
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address.ai_addr);
  return IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr);
}

int PortOf(const sockaddr_storage& name) {
  return ntohs(name.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(name).sin_port
                                         : reinterpret_cast<const sockaddr_in6&>(name).sin6_port);
}

// A listening socket on `address` with `port`. Not ok with errno: it could not be had.
UniqueFd ListenOn(const addrinfo& address, int port) {
  UniqueFd fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.ok()) return fd;
  const int on = 1;
  const int v6_alone = IsWildcard(address) ? 0 : 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // its connections inherit it
  if (address.ai_family == AF_INET6) {
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &v6_alone, sizeof v6_alone);
  }
  sockaddr_storage name = {};
  std::memcpy(&name, address.ai_addr, address.ai_addrlen);
  auto& in_port = address.ai_family == AF_INET ? reinterpret_cast<sockaddr_in&>(name).sin_port
                                               : reinterpret_cast<sockaddr_in6&>(name).sin6_port;
  in_port = htons(static_cast<uint16_t>(port));
  const auto* generic = reinterpret_cast<const sockaddr*>(&name);
  const bool bound =
      bind(fd.get(), generic, address.ai_addrlen) == 0 && listen(fd.get(), kBacklog) == 0;
  return bound ? std::move(fd) : UniqueFd();
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

absl::StatusOr<Addresses> Resolve(const std::string& host) {
  const std::string name(absl::StripSuffix(absl::StripPrefix(host, "["), "]"));
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(name.c_str(), nullptr, &hints, &list);
  if (error == 0) return Addresses(list);
  return absl::UnavailableError(absl::StrCat(host, ": ", gai_strerror(error)));
}

// Empty with errno in `error`: this machine has none of the name's addresses.
absl::StatusOr<std::vector<UniqueFd>> ListenOn(const std::string& host, int* port, int* error) {
  MP_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(host));
  std::vector<UniqueFd> listeners;
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    UniqueFd fd = ListenOn(*one, *port);
    if (!fd.ok()) {
      *error = errno;
      if (*error == EADDRINUSE) return std::vector<UniqueFd>();  // another has a part of the name
      continue;  // a family that this machine has not
    }
    sockaddr_storage name = {};
    socklen_t size = sizeof name;
    getsockname(fd.get(), reinterpret_cast<sockaddr*>(&name), &size);
    *port = PortOf(name);
    listeners.push_back(std::move(fd));
  }
  return listeners;
}

}  // namespace

absl::StatusOr<HostAndPort> ParseListen(const std::string& listen) {
  const size_t colon = listen.rfind(':');
  HostAndPort address{.host = listen.substr(0, colon), .port = -1};
  if (colon != std::string::npos && colon > 0 &&
      absl::SimpleAtoi(listen.substr(colon + 1), &address.port) && address.port >= 0 &&
      address.port <= 65535) {
    return address;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("expected HOST:PORT, such as 127.0.0.1:7070, not '", listen, "'"));
}

absl::Status CheckListenAddress(const std::string& listen) {
  return listen.empty() ? absl::OkStatus() : ParseListen(listen).status();
}

absl::StatusOr<std::vector<UniqueFd>> ListenOn(const std::string& host, int* port) {
  int error = 0;
  std::vector<UniqueFd> listeners;
  // As gRPC has it: what listens on every address does so on those of IPv6 too, where there are
  // any.
  if (host == "0.0.0.0") {
    MP_ASSIGN_OR_RETURN(listeners, ListenOn("::", port, &error));
    if (listeners.empty() && error == EADDRINUSE)
      return absl::UnavailableError(std::strerror(error));
  }
  if (listeners.empty()) {
    MP_ASSIGN_OR_RETURN(listeners, ListenOn(host, port, &error));
  }
  if (listeners.empty()) return absl::UnavailableError(std::strerror(error));
  return listeners;
}

}  // namespace milepost
