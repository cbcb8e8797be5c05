// When calls are really over: their handlers have returned, and their answers are written or will
// never be. gRPC keeps a thread for a call until then, and clients decide how long it takes.
//
//   CallEnds ends;
//   ends.Intercept(&builder, [&](const grpc::ServerContextBase& context) {
//     const uint64_t ticket = ...;             // an answer begins to be written
//     return [ticket] { ... };                 // and is
//   });
//   ends.Then(context, [caller] { ... });      // in a handler: at the end of its call
//
// Thread-safe; what is told at the end is called on gRPC's threads and must not block.
#ifndef MILEPOST_COORDINATOR_RPC_CALL_ENDS_H_
#define MILEPOST_COORDINATOR_RPC_CALL_ENDS_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>

namespace milepost::coordinator {

class CallEnds {
 public:
  using Done = std::function<void()>;
  // As the status of a call, with its message if it has but one, is given to gRPC.
  using Answering = std::function<Done(const grpc::ServerContextBase&)>;

  CallEnds();
  ~CallEnds();

  // Of every call of the server that is built. Once for a builder: it has no interceptors else.
  void Intercept(grpc::ServerBuilder* builder, Answering answering);
  // At once where nothing intercepts the call.
  void Then(const grpc::ServerContextBase* context, Done done);

 private:
  class Interceptor;
  class Factory;
  struct Calls;
  const std::shared_ptr<Calls> calls_;  // interceptors may outlive this
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_CALL_ENDS_H_
