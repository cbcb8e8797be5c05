#include "common/message_channel.h"

#include <google/protobuf/message_lite.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/poll.h"

namespace milepost {

absl::StatusOr<std::pair<MessageChannel, MessageChannel>> MessageChannel::CreatePair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ErrnoToStatus(errno, "cannot make a socket pair");
  }
  return std::pair{MessageChannel(UniqueFd(ends[0])), MessageChannel(UniqueFd(ends[1]))};
}

absl::Status MessageChannel::Send(const google::protobuf::MessageLite& message,
                                  absl::Time deadline) {
  std::string bytes = message.SerializeAsString();
  // An empty packet could not be told from the end of the stream.
  bytes.push_back('\0');
  if (bytes.size() > kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", bytes.size(), " bytes; at most ", kMaxBytes));
  }
  while (true) {
    ssize_t sent = send(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return absl::OkStatus();
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return absl::UnavailableError("the other process closed the channel");
    if (!PollFd(fd_.get(), POLLOUT, deadline)) {
      return absl::ResourceExhaustedError("the other process does not read");
    }
  }
}

absl::Status MessageChannel::Receive(google::protobuf::MessageLite* message, absl::Time deadline) {
  std::string bytes(kMaxBytes, '\0');
  while (true) {
    ssize_t received = recv(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (received == 0) return absl::OutOfRangeError("the other process closed the channel");
    if (received > 0) {
      if (message->ParseFromArray(bytes.data(), static_cast<int>(received - 1))) {
        return absl::OkStatus();
      }
      return absl::DataLossError(
          absl::StrCat("not a ", message->GetTypeName(), ": ", received, " bytes"));
    }
    if (errno == EINTR) continue;
    if (errno == ECONNRESET) return absl::OutOfRangeError("the other process closed the channel");
    if (errno != EAGAIN) return absl::ErrnoToStatus(errno, "cannot read the channel");
    if (!PollFd(fd_.get(), POLLIN, deadline)) {
      return absl::DeadlineExceededError("no message yet");
    }
  }
}

}  // namespace milepost
