// Connects sockets among all ranks: the first half of tcp.h.
#ifndef MILEPOST_ENGINE_COMM_TCP_CONNECT_H_
#define MILEPOST_ENGINE_COMM_TCP_CONNECT_H_

#include <vector>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "engine/comm/tcp.h"

namespace milepost::comm {

// The sockets by rank; this rank's own is empty. They are non-blocking, without Nagle's delay.
// Blocks. Errors are those of ConnectTcp.
absl::StatusOr<std::vector<UniqueFd>> ConnectSockets(int rank, int world, KeyValueStore* store,
                                                     const TcpOptions& options);

}  // namespace milepost::comm

#endif  // MILEPOST_ENGINE_COMM_TCP_CONNECT_H_
