// gRPC's own log. By default it goes to stderr, and says what our errors say better.
#ifndef MILEPOST_COMMON_RPC_GRPC_LOG_H_
#define MILEPOST_COMMON_RPC_GRPC_LOG_H_

namespace milepost {

// From now on gRPC's lines go to our log at level debug. For main(), before the first channel or
// server.
void ForwardGrpcLog();
// Does the same for servers. In addition, a refused client certificate causes a warning in our log,
// at most once a minute. Such a connection never reaches a call, so nothing else could report it.
void ForwardGrpcLogOfServer();

}  // namespace milepost

#endif  // MILEPOST_COMMON_RPC_GRPC_LOG_H_
