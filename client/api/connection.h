// A connection to the coordinator, which the clients of this folder share.
//
//   auto connection = client::Connection::To("127.0.0.1:7070");
//   client::JobClient jobs(connection);
//   MP_ASSIGN_OR_RETURN(v1::Job job, jobs.Get("jobs/7"));
//
// Errors: every call returns the server's code, and the message after "coordinator ADDRESS: " or
// the words of ConnectionOptions::called. common/error_details.h tells why a call was refused.
//
// Retries:
// - UNAVAILABLE, while the coordinator cannot be reached, and CANCELLED, when the coordinator cut
//   the call off: for ConnectionOptions::reach, with back-off and jitter.
// - RESOURCE_EXHAUSTED with RetryInfo, after too many calls: at the time that it states, within
//   ConnectionOptions::call.
// - No other error is retried.
//
// With several coordinators ("a:7070,b:7070") each attempt goes to the next one. The attempts last
// at least as long as a standby needs to take over.
//
// A retried deletion that finds nothing has succeeded. A retried creation may find that the thing
// already exists, and the server cannot know whether this call made it. The error then says so.
//
// After Cancel every call, also a running one, ends with CANCELLED.
//
// Thread-safe. Calls block; To does not.
#ifndef MILEPOST_CLIENT_API_CONNECTION_H_
#define MILEPOST_CLIENT_API_CONNECTION_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/rpc/endpoint.h"

namespace milepost::client {

struct ConnectionOptions {
  absl::Duration reach = absl::Seconds(5);  // how long UNAVAILABLE is retried
  absl::Duration call = absl::Seconds(60);  // longest unary call; DEADLINE_EXCEEDED after it
  // For a stream that has received a message: UNAVAILABLE is retried this long, if it is longer
  // than `reach`. So a client that follows a job outlasts a restart of the coordinator.
  absl::Duration reach_again = absl::ZeroDuration();
  // What errors call the coordinator where its address would tell the reader nothing. Empty:
  // "coordinator ADDRESS".
  std::string called = {};
  // Called with a warning about the coordinator's store, once for each text. Runs on the thread of
  // a call, so it should return quickly. May be empty.
  std::function<void(const std::string&)> on_warning;
};

class Connection {
 public:
  static std::shared_ptr<Connection> To(const Endpoint& coordinator,
                                        const ConnectionOptions& options = {});
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const std::string& address() const;
  void Cancel();

  struct Core;  // internal to this folder (call.h)
  Core& core() { return *core_; }

 private:
  explicit Connection(std::unique_ptr<Core> core);
  std::unique_ptr<Core> core_;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_API_CONNECTION_H_
