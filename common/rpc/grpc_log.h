// gRPC's own log, which goes to stderr line by line and says what our errors say better.
#ifndef MILEPOST_COMMON_RPC_GRPC_LOG_H_
#define MILEPOST_COMMON_RPC_GRPC_LOG_H_

namespace milepost {

// From now on its lines are ours of level debug. For main(), before the first channel or server.
void ForwardGrpcLog();

}  // namespace milepost

#endif  // MILEPOST_COMMON_RPC_GRPC_LOG_H_
