#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/status.h"
#include "common/status_macros.h"
#include "coordinator/rpc/coordinator.h"
#include "coordinator/rpc/paging.h"
#include "coordinator/rpc/services.h"
#include "coordinator/rpc/worker_session.h"
#include "milepost/v1/worker.grpc.pb.h"

namespace milepost::coordinator {

namespace {

constexpr absl::Duration kLongestKeyWait = absl::Minutes(10);

// One worker's stream. It is read one message after the other: the next one when the coordinator
// has dealt with the last. It ends when reading does and nothing is being written.
class SessionReactor final
    : public grpc::ServerBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage> {
 public:
  static SessionReactor* Start(Coordinator* coordinator, grpc::CallbackServerContext* context) {
    auto* reactor = new SessionReactor(coordinator, context);
    reactor->self_.reset(reactor);
    reactor->StartRead(&reactor->message_);
    return reactor;
  }
  ~SessionReactor() override = default;

  void OnReadDone(bool ok) override {
    if (!ok) return End(absl::OkStatus());
    // What the coordinator calls back may come when the call is over: it keeps the reactor.
    if (session_ != nullptr) {
      return coordinator_->Receive(session_, std::move(message_),
                                   [self = self_] { self->ReadNext(); });
    }
    if (!message_.has_hello()) {
      return End(absl::InvalidArgumentError("the first message must be Hello"));
    }
    const v1::Hello hello = std::move(*message_.mutable_hello());
    session_ = std::make_shared<WorkerSession>(
        WorkerName(hello.worker_id()),
        WorkerSession::Stream{
            .write = [this](const v1::CoordinatorMessage* outgoing) { StartWrite(outgoing); },
            .cancel = [this] { context_->TryCancel(); }});
    coordinator_->Attach(session_, hello,
                         [self = self_, id = hello.worker_id()](const absl::Status& status) {
                           if (status.ok()) return self->ReadNext();
                           spdlog::warn("worker '{}' is refused: {}", id.substr(0, 128),
                                        std::string(status.message()));
                           self->End(status);
                         });
  }

  void OnWriteDone(bool) override {
    if (!session_->Written()) FinishIfOver();
  }

  void OnDone() override { self_.reset(); }

 private:
  SessionReactor(Coordinator* coordinator, grpc::CallbackServerContext* context)
      : coordinator_(coordinator), context_(context) {}

  void ReadNext() {
    message_.Clear();
    StartRead(&message_);
  }

  // Nothing is being read or dealt with, and nothing will.
  void End(const absl::Status& status) {
    absl::Status reason = status;
    if (session_ != nullptr) {
      session_->Close();
      if (status.ok()) coordinator_->Detach(session_);
      if (!session_->reason().ok()) reason = session_->reason();
    }
    {
      absl::MutexLock lock(&mutex_);
      status_ = reason;
    }
    FinishIfOver();
  }

  // Once, by whichever comes last: the end of reading or of writing.
  void FinishIfOver() {
    absl::Status last;
    {
      absl::MutexLock lock(&mutex_);
      const bool over = status_.has_value() && (session_ == nullptr || session_->idle());
      if (!over || finished_) return;
      finished_ = true;
      last = *status_;
    }
    Finish(ToGrpcStatus(last));
  }

  Coordinator* const coordinator_;
  grpc::CallbackServerContext* const context_;
  std::shared_ptr<SessionReactor> self_;  // until the call is done
  v1::WorkerMessage message_;
  std::shared_ptr<WorkerSession> session_;
  absl::Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mutex_);
};

// Sessions take no thread each: there are thousands.
using WorkerServiceBase = v1::WorkerService::WithCallbackMethod_Session<v1::WorkerService::Service>;

class WorkerServiceImpl : public WorkerServiceBase {
 public:
  explicit WorkerServiceImpl(Coordinator* coordinator) : coordinator_(coordinator) {}

  grpc::ServerBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage>* Session(
      grpc::CallbackServerContext* context) override {
    return SessionReactor::Start(coordinator_, context);
  }

  grpc::Status GetWorker(grpc::ServerContext*, const v1::GetWorkerRequest* request,
                         v1::Worker* response) override {
    return Reply(coordinator_->GetWorker(request->name()), response);
  }

  grpc::Status DrainWorker(grpc::ServerContext*, const v1::DrainWorkerRequest* request,
                           v1::Worker* response) override {
    return Reply(coordinator_->Drain(*request), response);
  }
  grpc::Status ResumeWorker(grpc::ServerContext*, const v1::ResumeWorkerRequest* request,
                            v1::Worker* response) override {
    return Reply(coordinator_->ResumeWorker(request->name()), response);
  }

  grpc::Status ListWorkers(grpc::ServerContext*, const v1::ListWorkersRequest* request,
                           v1::ListWorkersResponse* response) override {
    auto size = PageSize(request->page_size());
    if (!size.ok()) return ToGrpcStatus(size.status());
    std::vector<v1::Worker> workers = coordinator_->ListWorkers(request->page_token(), *size + 1);
    const bool more = static_cast<int>(workers.size()) > *size;
    if (more) workers.pop_back();
    if (more) response->set_next_page_token(workers.back().name());
    for (v1::Worker& worker : workers) *response->add_workers() = std::move(worker);
    return grpc::Status::OK;
  }

 private:
  static grpc::Status Reply(absl::StatusOr<v1::Worker> worker, v1::Worker* response) {
    if (!worker.ok()) return ToGrpcStatus(worker.status());
    *response = *std::move(worker);
    return grpc::Status::OK;
  }

  Coordinator* const coordinator_;
};

class RendezvousServiceImpl : public v1::RendezvousService::Service {
 public:
  explicit RendezvousServiceImpl(Coordinator* coordinator) : coordinator_(coordinator) {}

  grpc::Status PutKey(grpc::ServerContext*, const v1::PutKeyRequest* request,
                      v1::PutKeyResponse*) override {
    // Under the generation's lock: no key outlives the attempt.
    return ToGrpcStatus(coordinator_->WithGeneration(request->job(), request->generation(), [&] {
      return coordinator_->rendezvous().Put(JobNumber(request->job()), request->generation(),
                                            request->key(), request->value());
    }));
  }

  grpc::Status GetKey(grpc::ServerContext* context, const v1::GetKeyRequest* request,
                      v1::GetKeyResponse* response) override {
    const absl::Time deadline =
        std::min(absl::FromChrono(context->deadline()), absl::Now() + kLongestKeyWait);
    auto check = [&] {
      if (context->IsCancelled()) return absl::CancelledError("the call was cancelled");
      MP_RETURN_IF_ERROR(coordinator_->Wait(request->job(), 0, absl::ZeroDuration()).status());
      return coordinator_->CheckGeneration(request->job(), request->generation());
    };
    auto value = coordinator_->rendezvous().Get(JobNumber(request->job()), request->generation(),
                                                request->key(), deadline, check);
    if (!value.ok()) return ToGrpcStatus(value.status());
    response->set_value(*std::move(value));
    return grpc::Status::OK;
  }

 private:
  Coordinator* const coordinator_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeWorkerService(Coordinator* coordinator) {
  return std::make_unique<WorkerServiceImpl>(coordinator);
}

std::unique_ptr<grpc::Service> MakeRendezvousService(Coordinator* coordinator) {
  return std::make_unique<RendezvousServiceImpl>(coordinator);
}

}  // namespace milepost::coordinator
