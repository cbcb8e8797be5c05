#include "worker/agent/session.h"

#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "absl/random/random.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/incarnation.h"
#include "common/rpc/coordinators.h"
#include "common/rpc/endpoint.h"
#include "common/rpc/status.h"
#include "milepost/v1/worker.grpc.pb.h"

namespace milepost::worker {

namespace {

using Stream = grpc::ClientReaderWriterInterface<v1::WorkerMessage, v1::CoordinatorMessage>;

constexpr absl::Duration kFirstBackoff = absl::Milliseconds(50);
constexpr absl::Duration kLongestBackoff = absl::Seconds(1);
constexpr absl::Duration kConnectPatience = absl::Seconds(5);
constexpr absl::Duration kSlice = absl::Milliseconds(200);
// Of several coordinators: until the next one is tried, and between two attempts.
constexpr absl::Duration kLongSlice = absl::Seconds(2);
constexpr absl::Duration kLongestRound = absl::Milliseconds(400);
constexpr absl::Duration kGoodbye = absl::Seconds(2);
// Until Welcome says otherwise.
constexpr absl::Duration kFirstHeartbeat = absl::Seconds(1);

}  // namespace

class Session::Impl {
 public:
  Impl(Endpoint coordinator, Outbox* outbox, Handler handler, Superseded superseded,
       std::function<void()> changed)
      : coordinator_(coordinator.address),
        outbox_(outbox),
        handler_(std::move(handler)),
        superseded_(std::move(superseded)),
        changed_(std::move(changed)),
        coordinators_(coordinator),
        thread_(&Impl::Loop, this) {}

  ~Impl() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    outbox_->Wake();
    const absl::Time deadline = Clock::Real()->Now() + kGoodbye;
    {
      absl::MutexLock lock(&mutex_);
      if (!welcomed_ && context_ != nullptr) context_->TryCancel();
      if (!mutex_.AwaitWithDeadline(absl::Condition(&ended_), deadline) && context_ != nullptr) {
        context_->TryCancel();
      }
    }
    thread_.join();
  }

  bool registered() {
    absl::MutexLock lock(&mutex_);
    return welcomed_;
  }

 private:
  void Loop() {
    spdlog::info("connecting to the coordinator at {}", coordinator_);
    absl::Duration backoff = kFirstBackoff;
    while (true) {
      const std::shared_ptr<grpc::Channel> channel = AwaitConnection();
      grpc::ClientContext context;
      context.set_wait_for_ready(!coordinators_.several());
      {
        absl::MutexLock lock(&mutex_);
        if (stopping_) break;
        context_ = &context;
        welcomed_ = false;
      }
      grpc::Status status = RunStream(channel, context);
      bool was_welcomed;
      {
        absl::MutexLock lock(&mutex_);
        context_ = nullptr;
        was_welcomed = std::exchange(welcomed_, false);
        if (stopping_) break;
      }
      if (was_welcomed) backoff = kFirstBackoff;
      if (was_welcomed && changed_) changed_();
      LogEnd(status, was_welcomed);
      ever_welcomed_ = ever_welcomed_ || was_welcomed;
      const std::optional<int64_t> known = KnownIncarnation(FromGrpcStatus(status));
      if (!ever_welcomed_ && known.has_value()) superseded_(*known);
      coordinators_.Failed(channel);
      Sleep(backoff * absl::Uniform(bits_, 0.7, 1.3));
      backoff = std::min(backoff * 2, coordinators_.several() ? kLongestRound : kLongestBackoff);
    }
    absl::MutexLock lock(&mutex_);
    ended_ = true;
  }

  // A stream that waits for the connection does so without a word: says what is in its way.
  std::shared_ptr<grpc::Channel> AwaitConnection() {
    const absl::Time deadline = Clock::Real()->Now() + kConnectPatience;
    while (true) {
      const std::shared_ptr<grpc::Channel> channel = coordinators_.Get();
      const absl::Duration slice = coordinators_.several() ? kLongSlice : kSlice;
      if (coordinators_.AwaitReady(channel.get(), Clock::Real()->Now() + slice)) return channel;
      if (IsStopping()) return channel;
      if (coordinators_.several()) Sleep(kFirstBackoff);
      if (Clock::Real()->Now() >= deadline) {
        if (!std::exchange(complained_, true)) Complain(channel);
        return channel;
      }
      coordinators_.Failed(channel);
    }
  }

  void Complain(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(Clock::Real()->Now() + kSlice));
    const auto stub = v1::WorkerService::NewStub(channel);
    std::unique_ptr<Stream> stream = stub->Session(&context);
    v1::CoordinatorMessage ignored;
    while (stream->Read(&ignored)) continue;
    const std::string why = stream->Finish().error_message();
    spdlog::warn("cannot reach the coordinator at {}: {}{}; trying on", coordinator_, why,
                 TlsRemedy(why));
  }

  bool IsStopping() {
    absl::MutexLock lock(&mutex_);
    return stopping_;
  }

  // The writer is its own thread; this one reads.
  grpc::Status RunStream(const std::shared_ptr<grpc::Channel>& channel,
                         grpc::ClientContext& context) {
    const auto stub = v1::WorkerService::NewStub(channel);
    std::unique_ptr<Stream> stream = stub->Session(&context);
    {
      absl::MutexLock lock(&mutex_);
      stream_open_ = true;
      heartbeat_ = kFirstHeartbeat;
    }
    std::thread writer(&Impl::Write, this, stream.get());
    v1::CoordinatorMessage message;
    while (stream->Read(&message)) {
      if (message.has_welcome()) {
        Welcome(message.welcome());
      } else {
        handler_(std::move(message));
      }
      message.Clear();
    }
    {
      absl::MutexLock lock(&mutex_);
      stream_open_ = false;
    }
    outbox_->Wake();
    writer.join();
    return stream->Finish();
  }

  void Write(Stream* stream) {
    bool alive = stream->Write(outbox_->StartStream());
    while (alive) {
      absl::Time deadline;
      bool stopping;
      {
        absl::MutexLock lock(&mutex_);
        if (!stream_open_) return;
        stopping = stopping_;
        deadline = stopping ? absl::InfinitePast() : Clock::Real()->Now() + heartbeat_;
      }
      std::optional<v1::WorkerMessage> message = outbox_->Next(deadline);
      if (!message.has_value()) {
        if (stopping) break;
        message.emplace();
        message->mutable_heartbeat();
      }
      alive = stream->Write(*message);
    }
    if (alive) stream->WritesDone();
  }

  void Welcome(const v1::Welcome& welcome) {
    const absl::Duration heartbeat =
        absl::Seconds(std::clamp(welcome.heartbeat_seconds(), 0.01, 60.0));
    {
      absl::MutexLock lock(&mutex_);
      welcomed_ = true;
      heartbeat_ = heartbeat;
    }
    if (changed_) changed_();
    outbox_->SetHeartbeat(heartbeat);
    outbox_->Wake();  // the wait for the next heartbeat begins anew
    complained_ = false;
    spdlog::info("registered with the coordinator at {}", coordinator_);
  }

  void LogEnd(const grpc::Status& status, bool was_welcomed) {
    // CANCELLED: a coordinator that ends.
    const bool closed = status.ok() || status.error_code() == grpc::StatusCode::CANCELLED;
    const std::string why = closed ? "it closed the stream" : status.error_message();
    if (was_welcomed) {
      spdlog::warn("lost the coordinator at {} ({}); ranks go on, reconnecting", coordinator_, why);
    } else if (!std::exchange(complained_, true)) {
      spdlog::warn("the coordinator at {} has not let this worker in ({}); trying again",
                   coordinator_, why);
    }
  }

  void Sleep(absl::Duration time) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&stopping_), time);
  }

  const std::string coordinator_;
  Outbox* const outbox_;
  const Handler handler_;
  const Superseded superseded_;
  const std::function<void()> changed_;
  CoordinatorChannel coordinators_;
  absl::BitGen bits_;
  bool ever_welcomed_ = false;
  bool complained_ = false;  // of not being let in; once until it is

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool stream_open_ ABSL_GUARDED_BY(mutex_) = false;
  bool welcomed_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  absl::Duration heartbeat_ ABSL_GUARDED_BY(mutex_) = kFirstHeartbeat;
  std::thread thread_;  // last: starts when all else is there
};

Session::Session(Endpoint coordinator, Outbox* outbox, Handler handler, Superseded superseded,
                 std::function<void()> changed)
    : impl_(std::make_unique<Impl>(std::move(coordinator), outbox, std::move(handler),
                                   std::move(superseded), std::move(changed))) {}

bool Session::registered() const { return impl_->registered(); }

Session::~Session() = default;

}  // namespace milepost::worker
