// Sockets that listen for connections over TCP.
#ifndef MILEPOST_COMMON_HTTP_LISTEN_H_
#define MILEPOST_COMMON_HTTP_LISTEN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace milepost {

struct HostAndPort {
  std::string host;  // "127.0.0.1", "[::1]"
  int port = 0;
};

// What a flag of this name says to listen on. INVALID_ARGUMENT: it is not HOST:PORT.
absl::StatusOr<HostAndPort> ParseListen(const std::string& flag, const std::string& listen);

// Sockets that listen on every address that `host` means, all with *port; 0: a free one, which is
// written there. UNAVAILABLE: what the system says. May ask the name service. Thread-safe.
absl::StatusOr<std::vector<UniqueFd>> ListenOn(const std::string& host, int* port);

}  // namespace milepost

#endif  // MILEPOST_COMMON_HTTP_LISTEN_H_
