// gRPC's own log, which goes to stderr line by line and says what our errors say better.
#ifndef MILEPOST_COMMON_RPC_GRPC_LOG_H_
#define MILEPOST_COMMON_RPC_GRPC_LOG_H_

namespace milepost {

// From now on its lines are ours of level debug. For main(), before the first channel or server.
void ForwardGrpcLog();
// The same for who serves. That a certificate was refused is then a warning of ours as well, at
// most once a minute: nothing of who showed it reaches a call, so nobody else can say so.
void ForwardGrpcLogOfServer();

}  // namespace milepost

#endif  // MILEPOST_COMMON_RPC_GRPC_LOG_H_
