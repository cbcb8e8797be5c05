// The one mapping between absl::Status and grpc::Status, and the channel every process uses.
#ifndef MILEPOST_COMMON_RPC_STATUS_H_
#define MILEPOST_COMMON_RPC_STATUS_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"

namespace milepost {

// Codes map one to one; the message travels as it is; a payload of type
// "type.googleapis.com/google.rpc.Status" travels as the binary details.
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

// Largest message either side accepts: a 4 MiB chunk and its header, with room.
inline constexpr int kMaxMessageBytes = 16 << 20;

// A channel of its own connection (not shared with other channels to the same target), so that bulk
// streams spread over several. Connects in the background; never blocks. Reconnects within 1 s.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target);

}  // namespace milepost

#endif  // MILEPOST_COMMON_RPC_STATUS_H_
