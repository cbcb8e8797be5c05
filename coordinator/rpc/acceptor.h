// Takes connections in gRPC's place, and hands them to it. gRPC 1.51's own listener gives up for
// good at the first accept() that fails, as it does when descriptors have run out; and it keeps
// whatever somebody sends who never logs in.
//
//   Acceptor acceptor(LimitsFor(RaiseDescriptorLimit(), /*login=*/true));
//   acceptor.AddTo(&builder, credentials, processor);
//   auto server = builder.BuildAndStart();
//   MP_ASSIGN_OR_RETURN(int port, acceptor.Listen("127.0.0.1", 0));
//   acceptor.Stop();  // then the server may be shut down; then destroy this
//
// What happens with connections: connection_table.h. A connection has logged in when a call on it
// was let in by `processor`, those to gRPC's health service not counted. Until then it is cut when
// it sends or calls too much, or takes too long; later, when its calls are refused or its answers
// not taken. Descriptors: two for each connection. Not thread-safe, but for Answering.
#ifndef MILEPOST_COORDINATOR_RPC_ACCEPTOR_H_
#define MILEPOST_COORDINATOR_RPC_ACCEPTOR_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/security/auth_metadata_processor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/rpc/connection_table.h"

namespace milepost::coordinator {

// Raises this process's limit of descriptors as far as it may: what it is then.
int RaiseDescriptorLimit();

// What a process with so many descriptors can have: the others are the store's and gRPC's own.
ConnectionLimits LimitsFor(int descriptors, bool login);

class Acceptor {
 public:
  explicit Acceptor(const ConnectionLimits& limits);
  ~Acceptor();  // stops; the server must be shut down

  // As many as there are slots, at least one: by whose credentials a call comes is how a
  // connection is known again. `processor`, which must not block, decides on each call; null: every
  // call is let in, and logs in when the connection has shown a certificate. Without slots it is
  // not asked.
  using Credentials = std::vector<std::shared_ptr<grpc::ServerCredentials>>;
  void AddTo(grpc::ServerBuilder* builder, const Credentials& credentials,
             const std::shared_ptr<grpc::AuthMetadataProcessor>& processor);
  // The server has been started. The port that is bound, on every address that `host` means.
  // UNAVAILABLE: it is in use, or no address of this machine.
  absl::StatusOr<int> Listen(const std::string& host, int port);
  // The call of `context` is answered from now on; what is returned is called when its client has
  // taken the answer. Connections whose answers wait for too long are cut.
  std::function<void()> Answering(const grpc::ServerContextBase& context);
  // No connection is taken any more. Idempotent.
  void Stop();
  // Ends every connection, whatever is on its way. After Stop, from any thread.
  void CutAll();

  size_t connections() const;

 private:
  struct Impl;
  class Processor;
  std::shared_ptr<Impl> impl_;  // also the credentials'
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_ACCEPTOR_H_
