// Exchanges protobuf messages between a process and its child, over a socket pair that keeps
// message boundaries (SOCK_SEQPACKET).
//
//   MP_ASSIGN_OR_RETURN(auto ends, MessageChannel::CreatePair());
//   options.fds = {{3, ends.second.fd()}};   // the child wraps it: MessageChannel(UniqueFd(3))
//   MP_RETURN_IF_ERROR(ends.first.Send(start, absl::Now() + absl::Seconds(1)));
//
// A serialized message has at most kMaxBytes. Several threads may send while one receives.
#ifndef MILEPOST_COMMON_MESSAGE_CHANNEL_H_
#define MILEPOST_COMMON_MESSAGE_CHANNEL_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"

namespace google::protobuf {
class MessageLite;
}

namespace milepost {

class MessageChannel {
 public:
  static constexpr int kMaxBytes = 128 << 10;

  static absl::StatusOr<std::pair<MessageChannel, MessageChannel>> CreatePair();
  explicit MessageChannel(UniqueFd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }

  // Waits for room until `deadline`; InfinitePast does not wait. RESOURCE_EXHAUSTED: there was no
  // room. UNAVAILABLE: the other end is closed. INVALID_ARGUMENT: the message is longer than
  // kMaxBytes.
  absl::Status Send(const google::protobuf::MessageLite& message, absl::Time deadline);

  // Waits for a message until `deadline`. DEADLINE_EXCEEDED: none came. OUT_OF_RANGE: the other end
  // is closed and all its messages were read. DATA_LOSS: the message is not of this type.
  absl::Status Receive(google::protobuf::MessageLite* message, absl::Time deadline);

 private:
  UniqueFd fd_;
};

}  // namespace milepost

#endif  // MILEPOST_COMMON_MESSAGE_CHANNEL_H_
