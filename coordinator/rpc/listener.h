// A listening socket of a coordinator: its address, its certificate, and how it treats connections.
// Internal to rpc/. Not thread-safe.
#ifndef MILEPOST_COORDINATOR_RPC_LISTENER_H_
#define MILEPOST_COORDINATOR_RPC_LISTENER_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace milepost::coordinator {

class Listener {
 public:
  // INVALID_ARGUMENT: not HOST:PORT, or not loopback without TLS; and the errors of
  // CoordinatorCredentials.
  static absl::StatusOr<Listener> Make(const std::string& listen, const std::string& tls_dir);

  const std::shared_ptr<grpc::ServerCredentials>& credentials() const { return credentials_; }
  // Must live until the server is built.
  void AddTo(grpc::ServerBuilder* builder);
  // host:port with the port that `server`, built since, has bound. UNAVAILABLE: it could not.
  absl::StatusOr<std::string> Address(const grpc::Server* server) const;

 private:
  std::string listen_;
  std::string host_;
  std::shared_ptr<grpc::ServerCredentials> credentials_;
  int port_ = 0;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_LISTENER_H_
