// The only mapping between absl::Status and grpc::Status, and the channel that every process uses.
#ifndef MILEPOST_COMMON_RPC_STATUS_H_
#define MILEPOST_COMMON_RPC_STATUS_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/rpc/endpoint.h"

namespace milepost {

// Codes map one to one, and the message is unchanged. The details of common/error_details.h travel
// as a google.rpc.Status, in the binary details. What does not fit into headers of 8 KiB is cut.
grpc::Status ToGrpcStatus(const absl::Status& status);
// For clients to which gRPC carries no details: the message begins with the reason, "TOKEN_EXPIRED:
// ...".
grpc::Status ToGrpcStatusWithoutDetails(const absl::Status& status);
// Converts back the results of both.
absl::Status FromGrpcStatus(const grpc::Status& status);

// The largest message that either side accepts: room for a 4 MiB chunk and its header.
inline constexpr int kMaxMessageBytes = 16 << 20;

// How soon a connection to a silent peer is given up: within 40 seconds (kPatient), or within five.
enum class Keepalive { kPatient, kImpatient };

// Makes a channel with its own connection, not shared with other channels to the same target, so
// that bulk streams spread over several. Never blocks. It reconnects within 1 s while some thread
// is in a call on it or in PauseForRetry. gRPC's synchronous API makes progress with connecting
// only there, and otherwise every 5 s.
std::shared_ptr<grpc::Channel> MakeChannel(const Endpoint& target,
                                           Keepalive keepalive = Keepalive::kPatient);

// Waits `pause` between two attempts of a call. It waits less when the channel was lost and
// connects again.
void PauseForRetry(grpc::Channel* channel, absl::Duration pause);

}  // namespace milepost

#endif  // MILEPOST_COMMON_RPC_STATUS_H_
