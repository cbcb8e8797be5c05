// How the clients make calls. Internal to client/api.
#ifndef MILEPOST_CLIENT_API_CALL_H_
#define MILEPOST_CLIENT_API_CALL_H_

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "client/api/connection.h"

namespace milepost::client {

struct Connection::Core {
  std::string address;
  ConnectionOptions options;
  std::shared_ptr<grpc::Channel> channel;

  std::mutex mutex;
  std::condition_variable cancelled_changed;
  bool cancelled = false;
  std::set<grpc::ClientContext*> in_flight;
  std::minstd_rand random{std::random_device{}()};
};

// Registers a context for Connection::Cancel for as long as it lives.
class CallContext {
 public:
  explicit CallContext(Connection::Core* core);
  ~CallContext();
  grpc::ClientContext* get() { return &context_; }

 private:
  Connection::Core* core_;
  grpc::ClientContext context_;
};

// The delays between attempts: 20 ms doubling to 500 ms, each with half of it random.
class Backoff {
 public:
  explicit Backoff(Connection::Core* core) : core_(core) { Progress(); }

  // The coordinator answered: start over.
  void Progress() {
    give_up_ = absl::Now() + core_->options.reach;
    next_ = absl::Milliseconds(20);
  }
  // Waits for the next attempt. False, at once, when `status` is not worth another, the time is up
  // or the connection is cancelled.
  bool Retry(const grpc::Status& status);

 private:
  Connection::Core* core_;
  absl::Time give_up_;
  absl::Duration next_;
};

// The status of a finished call, with where it happened.
absl::Status Explained(Connection::Core& core, const grpc::Status& status);

// One unary call with retries. `call` is a stub's method bound to its stub.
template <typename Request, typename Response>
absl::StatusOr<Response> Call(
    Connection::Core& core,
    const std::function<grpc::Status(grpc::ClientContext*, const Request&, Response*)>& call,
    const Request& request, absl::Duration longest) {
  Backoff backoff(&core);
  const absl::Time deadline = absl::Now() + longest;
  while (true) {
    CallContext context(&core);
    context.get()->set_deadline(absl::ToChronoTime(deadline));
    Response response;
    const grpc::Status status = call(context.get(), request, &response);
    if (status.ok()) return response;
    if (!backoff.Retry(status)) return Explained(core, status);
  }
}

// One server stream with retries: `open` starts it (again), `on_message` answers false to stop.
template <typename Message>
absl::Status Stream(
    Connection::Core& core,
    const std::function<std::unique_ptr<grpc::ClientReader<Message>>(grpc::ClientContext*)>& open,
    const std::function<bool(const Message&)>& on_message) {
  Backoff backoff(&core);
  while (true) {
    CallContext context(&core);
    auto reader = open(context.get());
    Message message;
    while (reader->Read(&message)) {
      backoff.Progress();
      if (on_message(message)) continue;
      context.get()->TryCancel();
      reader->Finish();
      return absl::OkStatus();
    }
    const grpc::Status status = reader->Finish();
    if (status.ok()) return absl::OkStatus();
    if (!backoff.Retry(status)) return Explained(core, status);
  }
}

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_API_CALL_H_
