// How the clients of client/api make calls. Internal to that folder.
#ifndef MILEPOST_CLIENT_API_CALL_H_
#define MILEPOST_CLIENT_API_CALL_H_

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "client/api/connection.h"
#include "common/rpc/coordinators.h"

namespace milepost::client {

struct Connection::Core {
  std::string address;
  bool tls = false;
  ConnectionOptions options;
  std::optional<CoordinatorChannel> coordinators;

  std::mutex mutex;
  std::condition_variable cancelled_changed;
  bool cancelled = false;
  std::set<grpc::ClientContext*> in_flight;
  std::set<std::string> warned;  // the warnings already reported
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

// Decides which failed attempts are repeated, and waits between attempts. There are two cases:
// - UNAVAILABLE, and calls that were cut off (CANCELLED): repeated for `reach`, after 20 ms
//   doubling to 500 ms. Half of each delay is random.
// - RESOURCE_EXHAUSTED whose answer says when to come back: repeated then, or up to half as much
//   later, if that is before the call's deadline.
class Backoff {
 public:
  // `longest`: the time limit for all attempts of a call, or for a stream since its last message.
  Backoff(Connection::Core* core, absl::Duration longest)
      : core_(core), longest_(longest), reach_(core->options.reach) {
    Progress();
  }

  // The coordinator answered: start over.
  void Progress() {
    give_up_ = absl::Now() + reach_;
    deadline_ = absl::Now() + longest_;
    next_ = absl::Milliseconds(20);
  }
  // A message of the stream arrived: start over, with more patience.
  void StreamProgress() {
    reach_ = std::max(reach_, core_->options.reach_again);
    longest_ = std::max(longest_, reach_);
    Progress();
  }
  absl::Time deadline() const { return deadline_; }
  // Waits until the next attempt, after one on `channel`; the next one may go to another
  // coordinator. Returns false at once when `status` is not worth another attempt, the time is up,
  // or the connection is cancelled.
  bool Retry(const grpc::Status& status, const std::shared_ptr<grpc::Channel>& channel);

 private:
  // The time until the next attempt. Nullopt: there is none.
  std::optional<absl::Duration> NextDelay(const grpc::Status& status);
  void Wait(std::unique_lock<std::mutex>& lock, const std::shared_ptr<grpc::Channel>& channel,
            absl::Duration delay);

  Connection::Core* core_;
  absl::Duration longest_;
  absl::Duration reach_;
  absl::Time give_up_;
  absl::Time deadline_;
  absl::Duration next_;
};

// The status of a finished call, with the coordinator's address.
absl::Status Explained(Connection::Core& core, const grpc::Status& status);

// Reports the warning, if any, in the coordinator's answer to a finished call.
void HearWarning(Connection::Core& core, const grpc::ClientContext& context);

// True when a failed call may have been carried out: it was sent to a coordinator, which did not
// refuse it as one too many.
bool MayHaveActed(const grpc::ClientContext& context, const grpc::Status& status);

// One unary call with retries; `method` is a method of Service's stub. `sent_before` is set when an
// attempt before the last one may have been carried out.
template <typename Service, typename Request, typename Response>
absl::StatusOr<Response> Call(Connection::Core& core,
                              grpc::Status (Service::Stub::*method)(grpc::ClientContext*,
                                                                    const Request&, Response*),
                              const Request& request, absl::Duration longest,
                              bool* sent_before = nullptr) {
  Backoff backoff(&core, longest);
  while (true) {
    CallContext context(&core);
    context.get()->set_deadline(absl::ToChronoTime(backoff.deadline()));
    const std::shared_ptr<grpc::Channel> channel = core.coordinators->Get();
    const auto stub = Service::NewStub(channel);
    Response response;
    const grpc::Status status = (stub.get()->*method)(context.get(), request, &response);
    HearWarning(core, *context.get());
    if (status.ok()) return response;
    if (!backoff.Retry(status, channel)) return Explained(core, status);
    if (sent_before != nullptr && MayHaveActed(*context.get(), status)) *sent_before = true;
  }
}

// One server stream with retries; `method` is a method of Service's stub. `on_message` may change
// `request` for the next attempt. It returns false to stop.
template <typename Service, typename Request, typename Message>
absl::Status Stream(Connection::Core& core,
                    std::unique_ptr<grpc::ClientReader<Message>> (Service::Stub::*method)(
                        grpc::ClientContext*, const Request&),
                    const Request& request, const std::function<bool(const Message&)>& on_message) {
  Backoff backoff(&core, core.options.call);
  while (true) {
    CallContext context(&core);
    const std::shared_ptr<grpc::Channel> channel = core.coordinators->Get();
    const auto stub = Service::NewStub(channel);
    auto reader = (stub.get()->*method)(context.get(), request);
    Message message;
    while (reader->Read(&message)) {
      const bool goes_on = on_message(message);
      backoff.StreamProgress();  // after what may have waited for a reader of ours
      if (goes_on) continue;
      context.get()->TryCancel();
      reader->Finish();
      return absl::OkStatus();
    }
    const grpc::Status status = reader->Finish();
    HearWarning(core, *context.get());
    if (status.ok()) return absl::OkStatus();
    if (!backoff.Retry(status, channel)) return Explained(core, status);
  }
}

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_API_CALL_H_
