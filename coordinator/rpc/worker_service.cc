#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <thread>
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

using SessionStream = grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::WorkerMessage>;

class WorkerServiceImpl : public v1::WorkerService::Service {
 public:
  explicit WorkerServiceImpl(Coordinator* coordinator) : coordinator_(coordinator) {}

  grpc::Status Session(grpc::ServerContext* context, SessionStream* stream) override {
    v1::WorkerMessage message;
    if (!stream->Read(&message)) return grpc::Status::OK;
    if (!message.has_hello()) {
      return ToGrpcStatus(absl::InvalidArgumentError("the first message must be Hello"));
    }
    const v1::Hello hello = std::move(*message.mutable_hello());
    auto session = std::make_shared<WorkerSession>(WorkerName(hello.worker_id()),
                                                   [context] { context->TryCancel(); });
    if (absl::Status status = coordinator_->Attach(session, hello); !status.ok()) {
      session->Close();
      spdlog::warn("worker '{}' is refused: {}", hello.worker_id().substr(0, 128),
                   std::string(status.message()));
      return ToGrpcStatus(status);
    }
    std::thread writer([&] {
      v1::CoordinatorMessage outgoing;
      while (session->Receive(&outgoing) && stream->Write(outgoing)) {
      }
    });
    while (stream->Read(&message)) coordinator_->Receive(session, std::move(message));
    session->Close();
    writer.join();
    coordinator_->Detach(session);
    return ToGrpcStatus(session->reason());
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
