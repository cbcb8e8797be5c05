#include "coordinator/desks/worker_session.h"

#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/error_details.h"
#include "common/rpc/status.h"
#include "common/spec/labels.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "coordinator/desks/coordinator.h"
#include "coordinator/desks/paging.h"
#include "coordinator/rpc/gate.h"
#include "coordinator/rpc/services.h"
#include "coordinator/security/principal.h"
#include "coordinator/store/store.h"
#include "milepost/v1/worker.grpc.pb.h"

namespace milepost::coordinator {

namespace {

constexpr char kWorkerList[] = "workers";
constexpr absl::Duration kLongestKeyWait = absl::Minutes(10);

// One worker's stream. It is read one message after the other: the next one when the coordinator
// has dealt with the last. It ends when reading does and nothing is being written.
class SessionReactor final
    : public grpc::ServerBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage> {
 public:
  static SessionReactor* Start(Coordinator* coordinator, Gate* gate,
                               grpc::CallbackServerContext* context) {
    auto* reactor = new SessionReactor(coordinator, gate, context);
    reactor->self_.reset(reactor);
    const absl::Status admitted = reactor->call_.LetIn(Subject::Nothing());
    if (admitted.ok()) {
      reactor->StartRead(&reactor->message_);
    } else {
      reactor->call_.Record(admitted);
      reactor->End(admitted);
    }
    return reactor;
  }
  ~SessionReactor() override = default;

  void OnReadDone(bool ok) override {
    if (!ok && session_ == nullptr) {
      return End(absl::InvalidArgumentError("the stream ended before Hello, or said nonsense"));
    }
    if (!ok) return End(absl::OkStatus());
    // What the coordinator calls back may come when the call is over: it keeps the reactor.
    if (session_ != nullptr) {
      if (absl::Status status = call_.StillHolds(); !status.ok()) {
        coordinator_->workers().Detach(session_);
        return End(status);
      }
      return coordinator_->workers().Receive(session_, std::move(message_),
                                             [self = self_] { self->ReadNext(); });
    }
    if (!message_.has_hello()) {
      return End(absl::InvalidArgumentError("the first message must be Hello"));
    }
    v1::Hello hello = std::move(*message_.mutable_hello());
    if (absl::Status status = CheckIsItself(&hello); !status.ok()) {
      call_.Record(status);
      return End(status);
    }
    session_ = std::make_shared<WorkerSession>(
        WorkerName(hello.worker_id()),
        WorkerSession::Stream{
            .write = [this](const v1::CoordinatorMessage* outgoing) { StartWrite(outgoing); },
            .cancel = [this] { context_->TryCancel(); }});
    coordinator_->workers().Attach(
        session_, hello, [self = self_, id = hello.worker_id()](const absl::Status& status) {
          self->call_.Record(status);
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
  SessionReactor(Coordinator* coordinator, Gate* gate, grpc::CallbackServerContext* context)
      : coordinator_(coordinator),
        context_(context),
        call_(gate, context, "WorkerService/Session", nullptr) {}

  // A worker is who its certificate says; on loopback without TLS whoever it says.
  absl::Status CheckIsItself(v1::Hello* hello) {
    const std::string name = WorkerName(hello->worker_id());
    call_.About(name, "");
    const std::string& shown = call_.principal().name();
    if (shown == name) return SetPool(name, hello);
    if (shown == LocalPrincipal().name()) return absl::OkStatus();
    return Refusal(v1::ERROR_REASON_PERMISSION_DENIED, name,
                   absl::StrCat("the certificate is that of ", shown, ", which cannot speak for ",
                                CutUtf8(name, 200)));
  }

  // Nor may it say that it is of another pool than its certificate names.
  absl::Status SetPool(const std::string& name, v1::Hello* hello) {
    const std::string& pool = call_.principal().pool();
    if (pool.empty()) return absl::OkStatus();
    const auto said = hello->labels().find(kPoolLabel);
    if (said != hello->labels().end() && said->second != pool) {
      return Refusal(v1::ERROR_REASON_PERMISSION_DENIED, name,
                     absl::StrCat("the certificate of ", name, " is for pool ", pool,
                                  ", not for its label ", kPoolLabel, "=",
                                  CutUtf8(said->second, 200), ": start it without the label"));
    }
    (*hello->mutable_labels())[kPoolLabel] = pool;
    return absl::OkStatus();
  }

  void ReadNext() {
    message_.Clear();
    StartRead(&message_);
  }

  // Nothing is being read or dealt with, and nothing will.
  void End(const absl::Status& status) {
    absl::Status reason = status;
    if (session_ != nullptr) {
      session_->Close();
      if (status.ok()) coordinator_->workers().Detach(session_);
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
  GateCall call_;
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
  WorkerServiceImpl(Coordinator* coordinator, Gate* gate)
      : coordinator_(coordinator), gate_(gate) {}

  grpc::ServerBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage>* Session(
      grpc::CallbackServerContext* context) override {
    return SessionReactor::Start(coordinator_, gate_, context);
  }

  grpc::Status GetWorker(grpc::ServerContext* context, const v1::GetWorkerRequest* request,
                         v1::Worker* response) override {
    return Serve(context, "WorkerService/GetWorker", *request, request->name(), response,
                 [&] { return coordinator_->workers().Get(request->name()); });
  }
  grpc::Status DrainWorker(grpc::ServerContext* context, const v1::DrainWorkerRequest* request,
                           v1::Worker* response) override {
    return Serve(context, "WorkerService/DrainWorker", *request, request->name(), response,
                 [&] { return coordinator_->workers().Drain(*request); });
  }
  grpc::Status ResumeWorker(grpc::ServerContext* context, const v1::ResumeWorkerRequest* request,
                            v1::Worker* response) override {
    return Serve(context, "WorkerService/ResumeWorker", *request, request->name(), response,
                 [&] { return coordinator_->workers().Resume(request->name()); });
  }
  grpc::Status DeleteWorker(grpc::ServerContext* context, const v1::DeleteWorkerRequest* request,
                            v1::DeleteWorkerResponse*) override {
    return gate_->Serve(context, "WorkerService/DeleteWorker", *request, Subject::Nothing(),
                        [&](GateCall& call) {
                          call.About(request->name(), "");
                          return coordinator_->workers().Delete(request->name());
                        });
  }
  grpc::Status ListWorkers(grpc::ServerContext* context, const v1::ListWorkersRequest* request,
                           v1::ListWorkersResponse* response) override {
    return gate_->Serve(context, "WorkerService/ListWorkers", *request, Subject::Nothing(),
                        [&](GateCall& call) { return List(*request, call, response); });
  }

 private:
  grpc::Status Serve(grpc::ServerContext* context, absl::string_view method,
                     const google::protobuf::Message& request, const std::string& name,
                     v1::Worker* response,
                     const std::function<absl::StatusOr<v1::Worker>()>& action) {
    return gate_->Serve(context, method, request, Subject::Nothing(),
                        [&](GateCall& call) -> absl::Status {
                          call.About(name, "");
                          MP_ASSIGN_OR_RETURN(*response, action());
                          KeepSeen(call, response);
                          return absl::OkStatus();
                        });
  }

  absl::Status List(const v1::ListWorkersRequest& request, const GateCall& call,
                    v1::ListWorkersResponse* response) {
    MP_ASSIGN_OR_RETURN(const int size, PageSize(request.page_size()));
    MP_ASSIGN_OR_RETURN(const std::string after, NameOfToken(request.page_token(), kWorkerList));
    PageRoom room(size);
    std::vector<v1::Worker> workers = coordinator_->workers().List(after, &room);
    if (room.full()) response->set_next_page_token(TokenOfName(workers.back().name(), kWorkerList));
    for (v1::Worker& worker : workers) {
      KeepSeen(call, &worker);
      *response->add_workers() = std::move(worker);
    }
    return absl::OkStatus();
  }

  // Other projects' ranks are taken out.
  void KeepSeen(const GateCall& call, v1::Worker* worker) {
    if (call.Sees(kEveryProject)) return;
    auto* assignments = worker->mutable_assignments();
    const auto hidden = [&](const v1::RankPlacementOfJob& rank) {
      const auto project = coordinator_->jobs().ProjectOf(rank.job());
      return !project.ok() || !call.Sees(*project);
    };
    assignments->erase(std::remove_if(assignments->begin(), assignments->end(), hidden),
                       assignments->end());
  }

  Coordinator* const coordinator_;
  Gate* const gate_;
};

class RendezvousServiceImpl : public v1::RendezvousService::Service {
 public:
  RendezvousServiceImpl(Coordinator* coordinator, Gate* gate)
      : coordinator_(coordinator), gate_(gate) {}

  grpc::Status PutKey(grpc::ServerContext* context, const v1::PutKeyRequest* request,
                      v1::PutKeyResponse*) override {
    return gate_->Serve(context, "RendezvousService/PutKey", *request,
                        Subject::Attempt(request->job(), request->generation()),
                        [&](GateCall&) { return Put(*request); });
  }

  grpc::Status GetKey(grpc::ServerContext* context, const v1::GetKeyRequest* request,
                      v1::GetKeyResponse* response) override {
    return gate_->Serve(context, "RendezvousService/GetKey", *request,
                        Subject::Attempt(request->job(), request->generation()),
                        [&](GateCall& call) { return Get(context, call, *request, response); });
  }

  grpc::Status PutChoices(grpc::ServerContext* context, const v1::PutChoicesRequest* request,
                          v1::PutChoicesResponse*) override {
    return gate_->Serve(context, "RendezvousService/PutChoices", *request,
                        Subject::Attempt(request->job(), request->generation()),
                        [&](GateCall&) { return Put(*request); });
  }

  grpc::Status GetChoices(grpc::ServerContext* context, const v1::GetChoicesRequest* request,
                          v1::GetChoicesResponse* response) override {
    return gate_->Serve(
        context, "RendezvousService/GetChoices", *request,
        Subject::Attempt(request->job(), request->generation()), [&](GateCall&) -> absl::Status {
          MP_RETURN_IF_ERROR(
              coordinator_->attempts().CheckGeneration(request->job(), request->generation()));
          MP_ASSIGN_OR_RETURN(*response->mutable_choices(),
                              coordinator_->store().GetChoices(JobNumber(request->job())));
          return absl::OkStatus();
        });
  }

 private:
  absl::Status Put(const v1::PutChoicesRequest& request) {
    if (request.choices().size() > RendezvousTable::kMaxValueBytes) {
      return absl::InvalidArgumentError(absl::StrCat("choices: at most ",
                                                     RendezvousTable::kMaxValueBytes,
                                                     " bytes, not ", request.choices().size()));
    }
    Store& store = coordinator_->store();
    // Under the generation's lock: none outlives the job.
    MP_RETURN_IF_ERROR(coordinator_->attempts().WithGeneration(
        request.job(), request.generation(), [&]() -> absl::Status {
          return store.PutChoices(JobNumber(request.job()), request.choices());
        }));
    return store.SyncKeys();
  }

  absl::Status Put(const v1::PutKeyRequest& request) {
    RendezvousTable& table = coordinator_->attempts().rendezvous();
    const int64_t job = JobNumber(request.job());
    uint64_t put = 0;
    // Under the generation's lock: no key outlives the attempt.
    MP_RETURN_IF_ERROR(coordinator_->attempts().WithGeneration(
        request.job(), request.generation(), [&]() -> absl::Status {
          MP_ASSIGN_OR_RETURN(put,
                              table.Put(job, request.generation(), request.key(), request.value()));
          return absl::OkStatus();
        }));
    return table.Publish(job, request.generation(), request.key(), put);
  }

  absl::Status Get(grpc::ServerContext* context, const GateCall& call,
                   const v1::GetKeyRequest& request, v1::GetKeyResponse* response) {
    const absl::Time deadline =
        std::min(absl::FromChrono(context->deadline()), absl::Now() + kLongestKeyWait);
    auto check = [&] {
      if (context->IsCancelled()) return absl::CancelledError("the call was cancelled");
      MP_RETURN_IF_ERROR(call.StillHolds());
      MP_RETURN_IF_ERROR(
          coordinator_->jobs().Wait(request.job(), 0, absl::ZeroDuration()).status());
      return coordinator_->attempts().CheckGeneration(request.job(), request.generation());
    };
    MP_ASSIGN_OR_RETURN(
        *response->mutable_value(),
        coordinator_->attempts().rendezvous().Get(JobNumber(request.job()), request.generation(),
                                                  request.key(), deadline, check));
    return absl::OkStatus();
  }

  Coordinator* const coordinator_;
  Gate* const gate_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeWorkerService(Coordinator* coordinator, Gate* gate) {
  return std::make_unique<WorkerServiceImpl>(coordinator, gate);
}

std::unique_ptr<grpc::Service> MakeRendezvousService(Coordinator* coordinator, Gate* gate) {
  return std::make_unique<RendezvousServiceImpl>(coordinator, gate);
}

}  // namespace milepost::coordinator
