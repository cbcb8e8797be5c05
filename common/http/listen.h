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

// INVALID_ARGUMENT: it is not HOST:PORT. Port 0 is any free one.
absl::StatusOr<HostAndPort> ParseListen(const std::string& listen);
// The same, for flags; an empty one, which means not to listen, is well.
absl::Status CheckListenAddress(const std::string& listen);

// Sockets that listen on every address that `host` means, all with *port; 0: a free one, which is
// written there. UNAVAILABLE: what the system says. May ask the name service. Thread-safe.
absl::StatusOr<std::vector<UniqueFd>> ListenOn(const std::string& host, int* port);

}  // namespace milepost

#endif  // MILEPOST_COMMON_HTTP_LISTEN_H_
