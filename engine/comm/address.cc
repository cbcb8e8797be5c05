#include "engine/comm/address.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace milepost::comm {
namespace {

// The numeric form of an address.
absl::StatusOr<std::string> NumericAddress(const sockaddr* address, socklen_t bytes) {
  char text[NI_MAXHOST];
  const int error = getnameinfo(address, bytes, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  if (error != 0) return absl::InvalidArgumentError(gai_strerror(error));
  return std::string(text);
}

absl::StatusOr<std::string> ResolveHost(const std::string& host) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot use the host '", host, "' for collectives: ", gai_strerror(error)));
  }
  auto address = NumericAddress(found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return address;
}

absl::StatusOr<std::string> ResolveInterface(const std::string& name) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return absl::ErrnoToStatus(errno, "cannot list network interfaces");
  absl::StatusOr<std::string> address = absl::InvalidArgumentError(
      absl::StrCat("no network interface '", name, "' with an IP address on this host"));
  for (const ifaddrs* i = all; i != nullptr && !address.ok(); i = i->ifa_next) {
    if (name != i->ifa_name || i->ifa_addr == nullptr) continue;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    address =
        NumericAddress(i->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  }
  freeifaddrs(all);
  return address;
}

}  // namespace

absl::StatusOr<std::string> ResolveAddress(const std::string& host, const std::string& interface) {
  return interface.empty() ? ResolveHost(host) : ResolveInterface(interface);
}

}  // namespace milepost::comm
