#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/clock.h"
#include "common/poll.h"
#include "common/unique_fd.h"
#include "worker/doctor/checks.h"

namespace milepost::worker {
namespace {

constexpr absl::Duration kConnectTime = absl::Seconds(3);

struct Interfaces {
  std::map<std::string, std::string> by_address;  // numeric address -> name
  std::set<std::string> up;                       // those that are not loopback
};

std::string AddressText(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  } else if (address->sa_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text,
              sizeof text);
  }
  return text;
}

Interfaces ListInterfaces() {
  Interfaces interfaces;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return interfaces;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const std::string address = AddressText(entry->ifa_addr);
    if (address.empty()) continue;
    interfaces.by_address[address] = entry->ifa_name;
    if ((entry->ifa_flags & IFF_LOOPBACK) == 0) interfaces.up.insert(entry->ifa_name);
  }
  freeifaddrs(list);
  return interfaces;
}

// Our address on a connection to the target; the error says why there is none.
absl::StatusOr<std::string> ConnectFrom(const std::string& target) {
  const size_t colon = target.rfind(':');
  if (colon == std::string::npos) {
    return absl::InvalidArgumentError("--coordinator: expected HOST:PORT");
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(target.substr(0, colon).c_str(), target.substr(colon + 1).c_str(),
                                &hints, &found);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  UniqueFd fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int result = connect(fd.get(), found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno;
  freeaddrinfo(found);
  if (result == EINPROGRESS) {
    if (!PollFd(fd.get(), POLLOUT, Clock::Real()->Now() + kConnectTime)) {
      return absl::UnavailableError(
          absl::StrCat("no answer within ", absl::FormatDuration(kConnectTime)));
    }
    socklen_t size = sizeof result;
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &result, &size);
  }
  if (result != 0) return absl::UnavailableError(strerror(result));
  sockaddr_storage local = {};
  socklen_t size = sizeof local;
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&local), &size);
  return AddressText(reinterpret_cast<const sockaddr*>(&local));
}

Finding CheckCoordinator(const std::string& coordinator, const Interfaces& interfaces) {
  const absl::Time begin = Clock::Real()->Now();
  const auto address = ConnectFrom(coordinator);
  if (!address.ok()) {
    return Fail("coordinator",
                absl::StrCat(coordinator, ": ", std::string(address.status().message())),
                absl::IsInvalidArgument(address.status())
                    ? "such as head:7070"
                    : "is milepost-coordinator running there, listening on more than loopback, and "
                      "is its port open?");
  }
  const auto name = interfaces.by_address.find(*address);
  return Ok("coordinator",
            absl::StrFormat("%s answers in %.1f ms, over %s (%s)", coordinator,
                            absl::ToDoubleMilliseconds(Clock::Real()->Now() - begin),
                            name == interfaces.by_address.end() ? "?" : name->second, *address));
}

Finding CheckNccl(const std::string& wanted, const Interfaces& interfaces) {
  const std::string all = interfaces.up.empty() ? "none" : absl::StrJoin(interfaces.up, ", ");
  if (wanted.empty()) {
    return Ok("interfaces",
              absl::StrCat(all, interfaces.up.size() > 1
                                    ? "; NCCL chooses among them, NCCL_SOCKET_IFNAME says which"
                                    : ""));
  }
  std::vector<std::string> taken;
  for (const std::string& name : interfaces.up) {
    if (NcclTakes(wanted, name)) taken.push_back(name);
  }
  const std::string text = absl::StrCat("NCCL_SOCKET_IFNAME=", wanted);
  if (taken.empty()) {
    return Fail("interfaces", absl::StrCat(text, " matches none that is up (", all, ")"),
                "unset it, or name one of these");
  }
  return Ok("interfaces", absl::StrCat(text, " takes ", absl::StrJoin(taken, ", "), " of ", all));
}

}  // namespace

bool NcclTakes(const std::string& nccl_interfaces, const std::string& interface) {
  absl::string_view list = nccl_interfaces;
  const bool excludes = absl::ConsumePrefix(&list, "^");
  const bool exact = absl::ConsumePrefix(&list, "=");
  bool listed = false;
  for (absl::string_view name : absl::StrSplit(list, ',', absl::SkipEmpty())) {
    listed = listed || (exact ? interface == name : absl::StartsWith(interface, name));
  }
  return listed != excludes;
}

Findings CheckNetwork(const std::string& coordinator, const std::string& nccl_interfaces) {
  const Interfaces interfaces = ListInterfaces();
  Findings findings;
  for (absl::string_view one : absl::StrSplit(coordinator, ',', absl::SkipWhitespace())) {
    findings.push_back(CheckCoordinator(std::string(one), interfaces));
  }
  findings.push_back(CheckNccl(nccl_interfaces, interfaces));
  return findings;
}

}  // namespace milepost::worker
