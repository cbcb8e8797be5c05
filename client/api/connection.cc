#include "client/api/connection.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/api/call.h"
#include "common/error_details.h"
#include "common/rpc/status.h"
#include "common/rpc/warning.h"
#include "common/status_macros.h"

namespace milepost::client {
namespace {

// A standby takes over within ten seconds.
constexpr absl::Duration kTakeover = absl::Seconds(15);

}  // namespace

std::shared_ptr<Connection> Connection::To(const Endpoint& coordinator,
                                           const ConnectionOptions& options) {
  auto core = std::make_unique<Core>();
  core->address = coordinator.address;
  core->tls = coordinator.credentials != nullptr;
  core->options = options;
  core->coordinators.emplace(coordinator);
  if (core->coordinators->several()) {
    core->options.reach = std::max(core->options.reach, kTakeover);
  }
  return std::shared_ptr<Connection>(new Connection(std::move(core)));
}

Connection::Connection(std::unique_ptr<Core> core) : core_(std::move(core)) {}
Connection::~Connection() = default;

const std::string& Connection::address() const { return core_->address; }

void Connection::Cancel() {
  std::lock_guard lock(core_->mutex);
  core_->cancelled = true;
  for (grpc::ClientContext* context : core_->in_flight) context->TryCancel();
  core_->cancelled_changed.notify_all();
}

CallContext::CallContext(Connection::Core* core) : core_(core) {
  std::lock_guard lock(core_->mutex);
  core_->in_flight.insert(&context_);
  if (core_->cancelled) context_.TryCancel();
}

CallContext::~CallContext() {
  std::lock_guard lock(core_->mutex);
  core_->in_flight.erase(&context_);
}

bool Backoff::Retry(const grpc::Status& status, const std::shared_ptr<grpc::Channel>& channel) {
  std::unique_lock lock(core_->mutex);
  const std::optional<absl::Duration> delay = NextDelay(status);
  if (!delay.has_value() || core_->cancelled) return false;
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) core_->coordinators->Failed(channel);
  Wait(lock, channel, *delay);
  return !core_->cancelled;
}

std::optional<absl::Duration> Backoff::NextDelay(const grpc::Status& status) {
  const double share = std::uniform_real_distribution<double>(0.5, 1)(core_->random);
  const absl::Time now = absl::Now();
  // The coordinator cuts readers that stand still, as one does behind a pager: CANCELLED.
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE ||
      status.error_code() == grpc::StatusCode::CANCELLED) {
    const absl::Duration left = std::min(give_up_, deadline_) - now;
    if (left <= absl::ZeroDuration()) return std::nullopt;
    const absl::Duration delay = std::min(next_ * share, left);
    next_ = std::min(next_ * 2, absl::Milliseconds(500));
    return delay;
  }
  if (status.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED) return std::nullopt;
  const std::optional<absl::Duration> asked = RetryDelayOf(FromGrpcStatus(status));
  if (!asked.has_value()) return std::nullopt;
  // A coordinator that asks for no time at all is not asked all the time.
  const absl::Duration delay = std::max(*asked, absl::Milliseconds(20)) * (0.5 + share);
  if (now + delay >= deadline_) return std::nullopt;
  return delay;
}

void Backoff::Wait(std::unique_lock<std::mutex>& lock,
                   const std::shared_ptr<grpc::Channel>& channel, absl::Duration delay) {
  if (core_->coordinators->several() ||
      channel->GetState(/*try_to_connect=*/true) == GRPC_CHANNEL_READY) {
    core_->cancelled_changed.wait_for(lock, absl::ToChronoNanoseconds(delay),
                                      [&] { return core_->cancelled; });
    return;
  }
  // gRPC gets on with connecting only while some thread waits in it.
  const absl::Time end = absl::Now() + delay;
  bool connected = false;
  while (!core_->cancelled && !connected && absl::Now() < end) {
    lock.unlock();
    const absl::Time slice = std::min(end, absl::Now() + absl::Milliseconds(50));
    connected = channel->WaitForConnected(absl::ToChronoTime(slice));
    lock.lock();
  }
}

void HearWarning(Connection::Core& core, const grpc::ClientContext& context) {
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto found = metadata.find(kWarningKey);
  if (found == metadata.end() || !core.options.on_warning) return;
  const std::string text(found->second.data(), found->second.size());
  {
    std::lock_guard lock(core.mutex);
    constexpr size_t kMostTexts = 16;
    if (core.warned.size() >= kMostTexts || !core.warned.insert(text).second) return;
  }
  core.options.on_warning(text);
}

bool MayHaveActed(const grpc::ClientContext& context, const grpc::Status& status) {
  // Until there is a connection, the peer is what was asked for.
  const std::string peer = context.peer();
  const bool sent = absl::StartsWith(peer, "ipv4:") || absl::StartsWith(peer, "ipv6:") ||
                    absl::StartsWith(peer, "unix:");
  return sent && status.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED;
}

absl::Status Explained(Connection::Core& core, const grpc::Status& status) {
  absl::Status result = FromGrpcStatus(status);
  {
    std::lock_guard lock(core.mutex);
    if (core.cancelled) return absl::CancelledError("cancelled");
  }
  if (absl::IsUnavailable(result)) {
    const std::string& called = core.options.called;
    result = Annotate(result,
                      absl::StrCat("cannot reach ",
                                   called.empty() ? "the coordinator at " + core.address : called,
                                   " (tried for ", absl::FormatDuration(core.options.reach), ")"));
    // It listens, and what came over the connection was nothing to it.
    const bool closed = absl::StrContains(result.message(), "Socket closed") ||
                        absl::StrContains(result.message(), "Connection reset");
    if (core.tls || !closed) {
      const std::string remedy = TlsRemedy(result.message());
      if (remedy.empty()) return result;
      return absl::UnavailableError(absl::StrCat(result.message(), remedy));
    }
    return absl::UnavailableError(
        absl::StrCat(result.message(), "; if it has TLS: milepost auth login --coordinator ",
                     core.address, " --ca FILE --token-file FILE"));
  }
  const std::string& called = core.options.called;
  return Annotate(result, called.empty() ? absl::StrCat("coordinator ", core.address) : called);
}

}  // namespace milepost::client
