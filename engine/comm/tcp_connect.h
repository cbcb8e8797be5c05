// Connected sockets among all ranks: the first half of tcp.h.
#ifndef MILEPOST_ENGINE_COMM_TCP_CONNECT_H_
#define MILEPOST_ENGINE_COMM_TCP_CONNECT_H_

#include <vector>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "engine/comm/tcp.h"

namespace milepost::comm {

// By rank; this rank's own is empty. Non-blocking, without Nagle's delay.
absl::StatusOr<std::vector<UniqueFd>> ConnectSockets(int rank, int world, KeyValueStore* store,
                                                     const TcpOptions& options);

}  // namespace milepost::comm

#endif  // MILEPOST_ENGINE_COMM_TCP_CONNECT_H_
