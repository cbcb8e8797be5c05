// A listening socket of a coordinator: its address, its certificate, and how it treats connections.
// Internal to rpc/. Not thread-safe.
#ifndef MILEPOST_COORDINATOR_RPC_LISTENER_H_
#define MILEPOST_COORDINATOR_RPC_LISTENER_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/security/auth_metadata_processor.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/http/listen.h"
#include "coordinator/rpc/acceptor.h"

namespace milepost::coordinator {

// What a flag of that name says to listen on. INVALID_ARGUMENT: it is not HOST:PORT; or it is not
// loopback, and there is no TLS.
absl::StatusOr<HostAndPort> CheckListen(const std::string& flag, const std::string& listen,
                                        const std::string& tls_dir);

class Listener {
 public:
  // INVALID_ARGUMENT: not HOST:PORT, or not loopback without TLS; and the errors of
  // CoordinatorCredentials.
  static absl::StatusOr<Listener> Make(const std::string& listen, const std::string& tls_dir);

  // `processor`: as Acceptor::AddTo has it.
  void AddTo(grpc::ServerBuilder* builder,
             const std::shared_ptr<grpc::AuthMetadataProcessor>& processor);
  // Takes the address for `server`, built since: host:port with the port that is bound.
  // UNAVAILABLE: it could not.
  absl::StatusOr<std::string> Open(const grpc::Server* server);
  // Told of every answer, as CallEnds::Answering is.
  std::function<void()> Answering(const grpc::ServerContextBase& context) {
    return acceptor_->Answering(context);
  }
  // Before the server is shut down; it must be, before this is destroyed. Idempotent.
  void Close() { acceptor_->Stop(); }
  // After Close, from any thread: ends the connections that are left.
  void CutAll() { acceptor_->CutAll(); }

 private:
  std::string listen_;
  std::string host_;
  int port_ = 0;
  Acceptor::Credentials credentials_;
  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_LISTENER_H_
