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

}  // namespace

RendezvousStore::RendezvousStore(std::unique_ptr<v1::RendezvousService::StubInterface> stub,
                                 std::string job, int64_t generation, std::function<bool()> give_up,
                                 absl::Duration put_timeout)
    : stub_(std::move(stub)),
      job_(std::move(job)),
      generation_(generation),
      give_up_(std::move(give_up)),
      put_timeout_(put_timeout) {}

absl::Status RendezvousStore::Retry(absl::Time deadline,
                                    const std::function<absl::Status(absl::Time)>& call) {
  while (true) {
    if (give_up_()) return absl::CancelledError("told to stop while the ranks were meeting");
    const absl::Time now = Clock::Real()->Now();
    absl::Status status = call(std::min(deadline, now + kSlice));
    if (absl::IsAborted(status)) fenced_ = true;
    if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) return status;
    if (Clock::Real()->Now() >= deadline) return status;
    if (absl::IsUnavailable(status)) absl::SleepFor(kRetryAfter);
  }
}

absl::Status RendezvousStore::Put(absl::string_view key, absl::string_view value) {
  v1::PutKeyRequest request;
  request.set_job(job_);
  request.set_generation(generation_);
  request.set_key(std::string(key));
  request.set_value(std::string(value));
  return Retry(Clock::Real()->Now() + put_timeout_, [&](absl::Time deadline) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(absl::ToChronoTime(deadline));
    v1::PutKeyResponse response;
    return Annotate(FromGrpcStatus(stub_->PutKey(&context, request, &response)), "rendezvous");
  });
}

absl::StatusOr<std::string> RendezvousStore::Get(absl::string_view key, absl::Time deadline) {
  v1::GetKeyRequest request;
  request.set_job(job_);
  request.set_generation(generation_);
  request.set_key(std::string(key));
  v1::GetKeyResponse response;
  MP_RETURN_IF_ERROR(Retry(deadline, [&](absl::Time slice) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(absl::ToChronoTime(slice));
    return Annotate(FromGrpcStatus(stub_->GetKey(&context, request, &response)), "rendezvous");
  }));
  return std::move(*response.mutable_value());
}

std::string LocalAddressTowards(const std::string& target) {
  const size_t colon = target.rfind(':');
  addrinfo hints = {};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (colon == std::string::npos ||
      getaddrinfo(target.substr(0, colon).c_str(), target.substr(colon + 1).c_str(), &hints,
                  &found) != 0) {
    return "127.0.0.1";
  }
  std::string result = "127.0.0.1";
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

}  // namespace milepost::worker
