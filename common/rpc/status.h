// The one mapping between absl::Status and grpc::Status, and the channel every process uses.
#ifndef MILEPOST_COMMON_RPC_STATUS_H_
#define MILEPOST_COMMON_RPC_STATUS_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/rpc/endpoint.h"

namespace milepost {

// Codes map one to one; the message travels as it is; the details of common/error_details.h travel
// as a google.rpc.Status, the binary details. What has no room in headers of 8 KiB is cut.
grpc::Status ToGrpcStatus(const absl::Status& status);
// Where gRPC does not carry details, the message begins with the reason: "TOKEN_EXPIRED: ...".
grpc::Status ToGrpcStatusWithoutDetails(const absl::Status& status);
// Of either.
absl::Status FromGrpcStatus(const grpc::Status& status);

// Largest message either side accepts: a 4 MiB chunk and its header, with room.
inline constexpr int kMaxMessageBytes = 16 << 20;

// How soon a connection is given up whose other side is silent: within 40 seconds, or within five.
enum class Keepalive { kPatient, kImpatient };

// A channel of its own connection (not shared with other channels to the same target), so that bulk
// streams spread over several. Never blocks. Reconnects within 1 s, as long as some thread is in a
// call on it or in PauseForRetry: gRPC's synchronous API gets on with connecting only there (and
// else every 5 s).
std::shared_ptr<grpc::Channel> MakeChannel(const Endpoint& target,
                                           Keepalive keepalive = Keepalive::kPatient);

// Waits `pause` between two attempts of a call, less when the channel was away and connects.
void PauseForRetry(grpc::Channel* channel, absl::Duration pause);

}  // namespace milepost

#endif  // MILEPOST_COMMON_RPC_STATUS_H_
