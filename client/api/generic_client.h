// Calls of any method by its name, with serialized messages and a token of each call's own: for who
// passes on what others ask.
//
//   GenericClient coordinator(connection);
//   MP_ASSIGN_OR_RETURN(const std::string job, coordinator.Call(
//       "/milepost.v1.JobService/GetJob", request.SerializeAsString(), token));
//
// Calls are tried again as connection.h says, which has the errors too; the server's messages come
// as they are. A method that makes something must have a request_id for that. The token is shown
// instead of the connection's own; empty: none is. In plain text none ever is. Thread-safe.
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

// One server stream. Its callbacks come one after the other, on threads of gRPC's.
class GenericStream {
 public:
  virtual ~GenericStream() = default;
  // Ends it soon; `on_end` is still called. Does not block.
  virtual void Cancel() = 0;
  // Reads on after an `on_message` that said false; nothing where it reads already.
  virtual void Resume() = 0;
};

class GenericClient {
 public:
  explicit GenericClient(std::shared_ptr<Connection> connection)
      : connection_(std::move(connection)) {}

  // Blocks.
  absl::StatusOr<std::string> Call(const std::string& method, const std::string& request,
                                   const std::string& token);

  // Does not block, and is not tried again: after UNAVAILABLE the next one goes to the next
  // coordinator. `on_message` answers whether to read on at once, or else when Resume is called.
  // `on_end` is called once, last. The connection outlives the stream.
  std::shared_ptr<GenericStream> Stream(const std::string& method, const std::string& request,
                                        const std::string& token,
                                        std::function<bool(std::string)> on_message,
                                        std::function<void(absl::Status)> on_end);

 private:
  std::shared_ptr<Connection> connection_;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_API_GENERIC_CLIENT_H_
