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

// INVALID_ARGUMENT: the text is not HOST:PORT. Port 0 means any free port.
absl::StatusOr<HostAndPort> ParseListen(const std::string& listen);
// The same check for flags. An empty text is also valid, and means not to listen.
absl::Status CheckListenAddress(const std::string& listen);

// Opens sockets on every address of `host`, all with port *port. With 0 it picks a free port and
// writes it to *port. UNAVAILABLE: has the system's message. May ask the name service. Thread-safe.
absl::StatusOr<std::vector<UniqueFd>> ListenOn(const std::string& host, int* port);

}  // namespace milepost

#endif  // MILEPOST_COMMON_HTTP_LISTEN_H_
