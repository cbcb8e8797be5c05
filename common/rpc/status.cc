#include "common/rpc/status.h"

#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/error_details.h"
#include "common/utf8.h"

namespace milepost {

namespace {
constexpr int kKeepaliveMs = 20'000;
// No sooner than a coordinator lets itself be asked (coordinator/rpc/listener.cc).
constexpr int kImpatientKeepaliveMs = 2000;
constexpr int kImpatientTimeoutMs = 3000;
constexpr char kAfterReason[] = ": ";
// Errors travel in headers, of which gRPC's clients take 8 KiB; details grow by a third there.
constexpr size_t kMaxMessageInDetails = 1000;
constexpr size_t kMaxDetailsBytes = 3200;
constexpr size_t kMaxEncodedMessage = 3000;

// Headers have bytes that are not printable as "%0A".
std::string CutForHeader(const std::string& message) {
  size_t encoded = 0;
  for (size_t i = 0; i < message.size(); ++i) {
    const char c = message[i];
    encoded += c < ' ' || c > '~' || c == '%' ? 3 : 1;
    if (encoded > kMaxEncodedMessage) return CutUtf8(message, i);
  }
  return message;
}
}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string message = CutForHeader(std::string(status.message()));
  std::map<std::string, std::string> payloads;  // in an order of their own
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    if (absl::StartsWith(url, kDetailUrlPrefix)) payloads[std::string(url)] = std::string(payload);
  });
  v1::RpcStatus details;
  size_t bytes = kMaxMessageInDetails;
  for (auto& [url, payload] : payloads) {
    const size_t more = url.size() + payload.size();
    if (bytes + more > kMaxDetailsBytes) continue;
    bytes += more;
    google::protobuf::Any* detail = details.add_details();
    detail->set_type_url(url);
    detail->set_value(std::move(payload));
  }
  const auto code = static_cast<grpc::StatusCode>(status.code());
  if (payloads.empty()) return grpc::Status(code, message);
  details.set_code(code);
  // Beside the message itself, in headers; half a character would cost the details.
  details.set_message(CutUtf8(message, kMaxMessageInDetails));
  return grpc::Status(code, message, details.SerializeAsString());
}

grpc::Status ToGrpcStatusWithoutDetails(const absl::Status& status) {
  const v1::ErrorReason reason = ReasonOf(status);
  if (reason == v1::ERROR_REASON_UNSPECIFIED) return ToGrpcStatus(status);
  return grpc::Status(
      static_cast<grpc::StatusCode>(status.code()),
      CutForHeader(absl::StrCat(ReasonName(reason), kAfterReason, status.message())));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  const std::string& message = status.error_message();
  const size_t end = message.find(kAfterReason);
  const v1::ErrorReason reason = ReasonOfName(message.substr(0, end));
  const bool named = end != std::string::npos && reason != v1::ERROR_REASON_UNSPECIFIED;
  if (named && CodeOf(reason) == code) {
    return Refusal(reason, "", message.substr(end + sizeof kAfterReason - 1));
  }
  absl::Status result(code, message);
  v1::RpcStatus details;
  if (!details.ParseFromString(status.error_details())) return result;
  for (const google::protobuf::Any& detail : details.details()) {
    if (!absl::StartsWith(detail.type_url(), kDetailUrlPrefix)) continue;
    result.SetPayload(detail.type_url(), absl::Cord(detail.value()));
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
