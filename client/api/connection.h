// A connection to the coordinator, shared by the clients of this folder.
//
//   auto connection = client::Connection::To("127.0.0.1:7070");
//   client::JobClient jobs(connection);
//   MP_ASSIGN_OR_RETURN(v1::Job job, jobs.Get("jobs/7"));
//
// Errors of every call: the server's code and message after "coordinator ADDRESS: ", or what
// ConnectionOptions::called says. While the
// coordinator cannot be reached (UNAVAILABLE) a call is tried again, with back-off and jitter, for
// ConnectionOptions::reach. Who makes too many calls and is told when to come back
// (RESOURCE_EXHAUSTED with RetryInfo) does so, within ConnectionOptions::call. No other error is
// retried; common/error_details.h tells why a call was refused. A deletion that finds nothing after
// an earlier attempt was sent has succeeded; where a repeated call finds that there is already what
// it was to make, and the server cannot know it again, the error says so. Of several coordinators
// ("a:7070,b:7070") each attempt goes to the next one, for at least as long as a standby needs to
// take over. After Cancel every call, also one in flight, ends with CANCELLED.
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
  // Of a stream that has had a message, where it is longer: whoever follows a job outlasts a
  // coordinator's restart.
  absl::Duration reach_again = absl::ZeroDuration();
  // What errors call the coordinator, where its address says nothing to who reads them; empty:
  // "coordinator ADDRESS".
  std::string called = {};
  // Called with what is wrong with the coordinator's store, where something is, once for each text;
  // on the thread of a call, so it should return quickly. May be empty.
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
