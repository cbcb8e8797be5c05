#include "worker/trainer/rendezvous.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "common/clock.h"
#include "common/rpc/status.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace milepost::worker {

namespace {

constexpr absl::Duration kSlice = absl::Seconds(1);
constexpr absl::Duration kRetryAfter = absl::Milliseconds(50);
// A coordinator that has too much to do is asked less and less often.
constexpr absl::Duration kOverloadedRetryAfter = absl::Milliseconds(200);
constexpr absl::Duration kLongestOverloadedRetry = absl::Seconds(2);

}  // namespace

RendezvousStore::RendezvousStore(const Endpoint& coordinator, std::string job, int64_t generation,
                                 std::function<bool()> give_up, absl::Duration put_timeout)
    : coordinators_(coordinator),
      job_(std::move(job)),
      generation_(generation),
      give_up_(std::move(give_up)),
      put_timeout_(put_timeout) {}

absl::Status RendezvousStore::Retry(absl::Time deadline, const Call& call) {
  absl::Duration overloaded_retry = kOverloadedRetryAfter;
  while (true) {
    if (give_up_()) return absl::CancelledError("told to stop while the ranks were meeting");
    const std::shared_ptr<grpc::Channel> channel = coordinators_.Get();
    const auto stub = v1::RendezvousService::NewStub(channel);
    grpc::ClientContext context;
    context.set_wait_for_ready(!coordinators_.several());
    context.set_deadline(absl::ToChronoTime(std::min(deadline, Clock::Real()->Now() + kSlice)));
    const absl::Status status = Annotate(FromGrpcStatus(call(stub.get(), &context)), "rendezvous");
    if (absl::IsAborted(status)) fenced_ = true;
    // A coordinator, or a standby, that stops or becomes the active one cuts calls off: CANCELLED.
    const bool away = absl::IsUnavailable(status) || absl::IsCancelled(status);
    // Its disk is full, or it has too much to do: not this rank's memory.
    const bool overloaded = absl::IsResourceExhausted(status);
    if (!away && !overloaded && !absl::IsDeadlineExceeded(status)) return status;
    if (Clock::Real()->Now() >= deadline) {
      return overloaded || away ? absl::UnavailableError(status.message()) : status;
    }
    if (overloaded) {
      absl::SleepFor(overloaded_retry);
      overloaded_retry = std::min(2 * overloaded_retry, kLongestOverloadedRetry);
      continue;
    }
    if (away || channel->GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_READY) {
      coordinators_.Failed(channel);
    }
    if (away) absl::SleepFor(kRetryAfter);
  }
}

absl::Status RendezvousStore::Put(absl::string_view key, absl::string_view value) {
  v1::PutKeyRequest request;
  request.set_job(job_);
  request.set_generation(generation_);
  request.set_key(std::string(key));
  request.set_value(std::string(value));
  v1::PutKeyResponse response;
  return Retry(Clock::Real()->Now() + put_timeout_,
               [&](v1::RendezvousService::Stub* stub, grpc::ClientContext* context) {
                 return stub->PutKey(context, request, &response);
               });
}

absl::StatusOr<std::string> RendezvousStore::Get(absl::string_view key, absl::Time deadline) {
  v1::GetKeyRequest request;
  request.set_job(job_);
  request.set_generation(generation_);
  request.set_key(std::string(key));
  v1::GetKeyResponse response;
  MP_RETURN_IF_ERROR(
      Retry(deadline, [&](v1::RendezvousService::Stub* stub, grpc::ClientContext* context) {
        return stub->GetKey(context, request, &response);
      }));
  return std::move(*response.mutable_value());
}

absl::StatusOr<std::string> RendezvousStore::GetChoices(absl::Time deadline) {
  v1::GetChoicesRequest request;
  request.set_job(job_);
  request.set_generation(generation_);
  v1::GetChoicesResponse response;
  MP_RETURN_IF_ERROR(
      Retry(deadline, [&](v1::RendezvousService::Stub* stub, grpc::ClientContext* context) {
        return stub->GetChoices(context, request, &response);
      }));
  return std::move(*response.mutable_choices());
}

absl::Status RendezvousStore::PutChoices(absl::string_view choices, absl::Time deadline) {
  v1::PutChoicesRequest request;
  request.set_job(job_);
  request.set_generation(generation_);
  request.set_choices(std::string(choices));
  v1::PutChoicesResponse response;
  return Retry(deadline, [&](v1::RendezvousService::Stub* stub, grpc::ClientContext* context) {
    return stub->PutChoices(context, request, &response);
  });
}

namespace {

// Empty when it has no address.
std::string AddressTowards(const std::string& target) {
  const size_t colon = target.rfind(':');
  addrinfo hints = {};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (colon == std::string::npos ||
      getaddrinfo(target.substr(0, colon).c_str(), target.substr(colon + 1).c_str(), &hints,
                  &found) != 0) {
    return "";
  }
  std::string result;
  UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));  // connecting it sends nothing
  sockaddr_in local = {};
  socklen_t size = sizeof local;
  char text[INET_ADDRSTRLEN];
  if (connect(fd.get(), found->ai_addr, found->ai_addrlen) == 0 &&
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&local), &size) == 0 &&
      inet_ntop(AF_INET, &local.sin_addr, text, sizeof text) != nullptr) {
    result = text;
  }
  freeaddrinfo(found);
  return result;
}

}  // namespace

std::string LocalAddressTowards(const std::string& target) {
  for (const std::string& one : SplitAddresses(target)) {
    const std::string address = AddressTowards(one);
    if (!address.empty()) return address;
  }
  return "127.0.0.1";
}

}  // namespace milepost::worker
