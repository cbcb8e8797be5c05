#include "common/rpc/status.h"

#include "absl/time/clock.h"
#include "common/clock.h"

namespace milepost {

namespace {
constexpr int kKeepaliveMs = 20'000;
// No sooner than a coordinator lets itself be asked (coordinator/rpc/listener.cc).
constexpr int kImpatientKeepaliveMs = 2000;
constexpr int kImpatientTimeoutMs = 3000;
constexpr char kDetailsUrl[] = "type.googleapis.com/google.rpc.Status";
}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string details;
  if (auto payload = status.GetPayload(kDetailsUrl)) details = std::string(*payload);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      details);
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  if (!status.error_details().empty()) {
    result.SetPayload(kDetailsUrl, absl::Cord(status.error_details()));
  }
  return result;
}

std::shared_ptr<grpc::Channel> MakeChannel(const Endpoint& target, Keepalive keepalive) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  // Also how long an attempt to connect may take at least: TLS takes some round trips.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, target.credentials == nullptr ? 50 : 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Finds out that the other host is gone when nothing says so.
  const bool impatient = keepalive == Keepalive::kImpatient;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, impatient ? kImpatientKeepaliveMs : kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, impatient ? kImpatientTimeoutMs : kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  const auto credentials =
      target.credentials != nullptr ? target.credentials : grpc::InsecureChannelCredentials();
  return grpc::CreateCustomChannel(target.address, credentials, arguments);
}

void PauseForRetry(grpc::Channel* channel, absl::Duration pause) {
  const absl::Time end = Clock::Real()->Now() + pause;
  if (channel->GetState(/*try_to_connect=*/true) == GRPC_CHANNEL_READY) {
    absl::SleepFor(pause);
  } else {
    channel->WaitForConnected(absl::ToChronoTime(end));
  }
}

}  // namespace milepost
