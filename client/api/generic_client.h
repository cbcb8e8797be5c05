// Calls any method by name, with serialized messages and a token for each call. It serves programs
// that forward requests of others.
//
//   GenericClient coordinator(connection);
//   MP_ASSIGN_OR_RETURN(const std::string job, coordinator.Call(
//       "/milepost.v1.JobService/GetJob", request.SerializeAsString(), token));
//
// Calls are retried as connection.h says, which also lists the errors. The server's messages are
// passed on unchanged. A method that creates something needs a request_id to be retried safely. The
// token replaces the connection's own. Empty: no token is sent. In plain text no token is ever
// sent. Thread-safe.
#ifndef MILEPOST_CLIENT_API_GENERIC_CLIENT_H_
#define MILEPOST_CLIENT_API_GENERIC_CLIENT_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/api/connection.h"

namespace milepost::client {

// One server stream. Its callbacks come one after the other, on gRPC's threads.
class GenericStream {
 public:
  virtual ~GenericStream() = default;
  // Ends the stream soon; `on_end` is still called. Does not block.
  virtual void Cancel() = 0;
  // Continues reading after an `on_message` that returned false. Does nothing while it reads
  // already.
  virtual void Resume() = 0;
};

class GenericClient {
 public:
  explicit GenericClient(std::shared_ptr<Connection> connection)
      : connection_(std::move(connection)) {}

  // Blocks.
  absl::StatusOr<std::string> Call(const std::string& method, const std::string& request,
                                   const std::string& token);

  // Does not block, and does not retry. After UNAVAILABLE the next stream goes to the next
  // coordinator. `on_message` returns whether to read on at once. Otherwise reading continues when
  // Resume is called. `on_end` is called once, last. The connection must outlive the stream.
  std::shared_ptr<GenericStream> Stream(const std::string& method, const std::string& request,
                                        const std::string& token,
                                        std::function<bool(std::string)> on_message,
                                        std::function<void(absl::Status)> on_end);

 private:
  std::shared_ptr<Connection> connection_;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_API_GENERIC_CLIENT_H_
