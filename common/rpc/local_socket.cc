#include "common/rpc/local_socket.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace milepost {
namespace {

constexpr int kLocalBacklog = 4096;
constexpr size_t kLongestName = 64;

struct SocketName {
  sockaddr_un address = {};
  socklen_t size = 0;
  const sockaddr* generic() const { return reinterpret_cast<const sockaddr*>(&address); }
};

// `name` has at most kLongestName bytes. Abstract names begin with a zero byte.
SocketName Abstract(const std::string& name) {
  SocketName result;
  result.address.sun_family = AF_UNIX;
  std::memcpy(result.address.sun_path + 1, name.data(), name.size());
  result.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return result;
}

UniqueFd LocalSocket() {
  return UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

}  // namespace

std::string LocalSocketName(absl::string_view address) {
  const bool plain = address.find_first_not_of("0123456789.:") == absl::string_view::npos;
  if (!plain || !absl::StartsWith(address, "127.") || address.size() > kLongestName / 2) return "";
  return absl::StrCat("milepost-coordinator-", address);
}

absl::StatusOr<UniqueFd> ListenLocally(absl::string_view address) {
  const std::string name = LocalSocketName(address);
  UniqueFd fd = name.empty() ? UniqueFd() : LocalSocket();
  if (!fd.ok()) return fd;
  const SocketName bound = Abstract(name);
  if (bind(fd.get(), bound.generic(), bound.size) == 0 && listen(fd.get(), kLocalBacklog) == 0) {
    return fd;
  }
  return absl::UnavailableError(absl::StrCat("@", name, ": ", std::strerror(errno)));
}

Endpoint ShortestWay(const Endpoint& endpoint) {
  if (endpoint.credentials != nullptr) return endpoint;
  const std::string name = LocalSocketName(endpoint.address);
  const UniqueFd fd = name.empty() ? UniqueFd() : LocalSocket();
  if (!fd.ok()) return endpoint;
  const SocketName there = Abstract(name);
  if (connect(fd.get(), there.generic(), there.size) != 0) return endpoint;
  return Endpoint(absl::StrCat("unix-abstract:", name));
}

}  // namespace milepost
