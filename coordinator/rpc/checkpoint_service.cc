#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/status.h"
#include "common/status_macros.h"
#include "coordinator/rpc/coordinator.h"
#include "coordinator/rpc/paging.h"
#include "coordinator/rpc/services.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/store.h"
#include "milepost/v1/checkpoint.grpc.pb.h"

namespace milepost::coordinator {

namespace {

// A commit waits this long for the streams of other ranks.
constexpr absl::Duration kLongestCommitWait = absl::Minutes(10);

class CheckpointServiceImpl : public v1::CheckpointService::Service {
 public:
  explicit CheckpointServiceImpl(Coordinator* coordinator) : coordinator_(coordinator) {}

  grpc::Status BeginCheckpoint(grpc::ServerContext*, const v1::BeginCheckpointRequest* request,
                               v1::BeginCheckpointResponse* response) override {
    absl::Status status = coordinator_->CheckGeneration(request->job(), request->generation());
    if (!status.ok()) return ToGrpcStatus(status);
    auto name = store().Begin(*request);
    if (!name.ok()) return ToGrpcStatus(name.status());
    response->set_checkpoint(*std::move(name));
    return grpc::Status::OK;
  }

  grpc::Status WriteChunks(grpc::ServerContext*, grpc::ServerReader<v1::WriteChunksRequest>* reader,
                           v1::WriteChunksResponse* response) override {
    return ToGrpcStatus(Write(reader, response));
  }

  grpc::Status CommitCheckpoint(grpc::ServerContext* context,
                                const v1::CommitCheckpointRequest* request,
                                v1::Checkpoint* response) override {
    return Reply(Commit(context, *request), response);
  }

  grpc::Status AbortCheckpoint(grpc::ServerContext*, const v1::AbortCheckpointRequest* request,
                               v1::AbortCheckpointResponse*) override {
    absl::Status status = CheckOwner(request->checkpoint(), request->job(), request->generation());
    return ToGrpcStatus(status.ok() ? store().Abort(request->checkpoint()) : status);
  }

  grpc::Status GetCheckpoint(grpc::ServerContext*, const v1::GetCheckpointRequest* request,
                             v1::CheckpointManifest* response) override {
    auto manifest = store().Get(request->name());
    if (!manifest.ok()) return ToGrpcStatus(manifest.status());
    *response = *std::move(manifest);
    return grpc::Status::OK;
  }

  grpc::Status ListCheckpoints(grpc::ServerContext*, const v1::ListCheckpointsRequest* request,
                               v1::ListCheckpointsResponse* response) override {
    return ToGrpcStatus(List(*request, response));
  }

  grpc::Status ReadChunks(grpc::ServerContext*, const v1::ReadChunksRequest* request,
                          grpc::ServerWriter<v1::Chunk>* writer) override {
    return ToGrpcStatus(Read(*request, writer));
  }

  grpc::Status VerifyCheckpoint(grpc::ServerContext* context,
                                const v1::VerifyCheckpointRequest* request,
                                v1::VerifyCheckpointResponse* response) override {
    auto verified = store().Verify(request->name(), [&] { return context->IsCancelled(); });
    if (!verified.ok()) return ToGrpcStatus(verified.status());
    *response = *std::move(verified);
    if (response->damaged_chunks_size() > 0) Moved(response->checkpoint().job());
    return grpc::Status::OK;
  }

  grpc::Status PinCheckpoint(grpc::ServerContext*, const v1::PinCheckpointRequest* request,
                             v1::Checkpoint* response) override {
    return Reply(store().Pin(request->name(), request->pinned()), response);
  }

  grpc::Status DeleteCheckpoint(grpc::ServerContext*, const v1::DeleteCheckpointRequest* request,
                                v1::DeleteCheckpointResponse*) override {
    auto manifest = store().Owner(request->name());
    if (!manifest.ok()) return ToGrpcStatus(manifest.status());
    auto job = coordinator_->Get(manifest->job());
    const bool running = job.ok() && !IsTerminal(job->state());
    absl::Status status = store().Delete(request->name(), /*keep_newest=*/running);
    if (status.ok()) Moved(manifest->job());
    return ToGrpcStatus(status);
  }

 private:
  CheckpointStore& store() { return coordinator_->store().checkpoints(); }

  static grpc::Status Reply(absl::StatusOr<v1::Checkpoint> checkpoint, v1::Checkpoint* response) {
    if (!checkpoint.ok()) return ToGrpcStatus(checkpoint.status());
    *response = *std::move(checkpoint);
    return grpc::Status::OK;
  }

  void Moved(const std::string& job) {
    if (absl::Status status = coordinator_->UpdateNewestCheckpoint(job); !status.ok()) {
      spdlog::warn("the newest checkpoint of {} cannot be noted: {}", job,
                   std::string(status.message()));
    }
  }

  absl::Status CheckOwner(const std::string& name, const std::string& job, int64_t generation) {
    MP_ASSIGN_OR_RETURN(v1::Checkpoint owner, store().Owner(name));
    if (owner.job() != job || owner.generation() != generation) {
      return absl::AbortedError(absl::StrCat(name, " belongs to ", owner.job(), " generation ",
                                             owner.generation(), ", not to ", job, " generation ",
                                             generation));
    }
    return absl::OkStatus();
  }

  absl::Status Write(grpc::ServerReader<v1::WriteChunksRequest>* reader,
                     v1::WriteChunksResponse* response) {
    v1::WriteChunksRequest message;
    if (!reader->Read(&message)) {
      return absl::InvalidArgumentError("the stream ended before its first message");
    }
    const std::string name = message.checkpoint();
    MP_ASSIGN_OR_RETURN(v1::Checkpoint owner, store().Owner(name));
    MP_RETURN_IF_ERROR(coordinator_->CheckGeneration(owner.job(), message.generation()));
    MP_ASSIGN_OR_RETURN(std::unique_ptr<StreamWriter> stream,
                        store().OpenStream(name, message.generation(), message.stream()));
    do {
      if (!message.has_chunk()) continue;
      MP_RETURN_IF_ERROR(stream->Append(std::move(*message.mutable_chunk())));
    } while (reader->Read(&message));
    MP_ASSIGN_OR_RETURN(const int64_t bytes, stream->Finish());
    response->set_bytes(bytes);
    return absl::OkStatus();
  }

  absl::StatusOr<v1::Checkpoint> Commit(grpc::ServerContext* context,
                                        const v1::CommitCheckpointRequest& request) {
    MP_RETURN_IF_ERROR(CheckOwner(request.checkpoint(), request.job(), request.generation()));
    const absl::Time deadline =
        std::min(absl::FromChrono(context->deadline()), absl::Now() + kLongestCommitWait);
    MP_RETURN_IF_ERROR(store().WaitStreams(request.checkpoint(), deadline,
                                           [&] { return context->IsCancelled(); }));
    bool published = false;
    auto guard = [&](const std::function<absl::Status()>& publish) {
      published = true;
      return coordinator_->WithGeneration(request.job(), request.generation(), publish);
    };
    MP_ASSIGN_OR_RETURN(v1::Checkpoint checkpoint,
                        store().Commit(request.checkpoint(), absl::Now(), guard));
    if (published) AfterCommit(checkpoint);
    return checkpoint;
  }

  // The checkpoint stands whatever happens here.
  void AfterCommit(const v1::Checkpoint& checkpoint) {
    spdlog::info("{}: step {} of {} is committed, {} bytes", checkpoint.name(), checkpoint.step(),
                 checkpoint.job(), checkpoint.bytes());
    Moved(checkpoint.job());
    auto job = coordinator_->Get(checkpoint.job());
    if (!job.ok()) return;
    const v1::CheckpointSpec& spec = job->spec().checkpoint();
    auto deleted = store().Retain(checkpoint.job(),
                                  {.keep_last = spec.keep_last(), .keep_every = spec.keep_every()});
    if (!deleted.ok()) {
      spdlog::warn("old checkpoints of {} cannot be deleted: {}", checkpoint.job(),
                   std::string(deleted.status().message()));
    }
  }

  absl::Status List(const v1::ListCheckpointsRequest& request,
                    v1::ListCheckpointsResponse* response) {
    MP_ASSIGN_OR_RETURN(const int size, PageSize(request.page_size()));
    MP_ASSIGN_OR_RETURN(const int64_t before, NumberOfToken(request.page_token()));
    for (v1::Checkpoint& checkpoint : store().List(request.job())) {
      if (before != 0 && CheckpointNumber(checkpoint.name()) >= before) continue;
      if (response->checkpoints_size() == size) {
        const std::string& last = response->checkpoints(size - 1).name();
        response->set_next_page_token(TokenOfNumber(CheckpointNumber(last)));
        break;
      }
      *response->add_checkpoints() = std::move(checkpoint);
    }
    return absl::OkStatus();
  }

  absl::Status Read(const v1::ReadChunksRequest& request, grpc::ServerWriter<v1::Chunk>* writer) {
    const std::vector<v1::TensorRange> ranges(request.ranges().begin(), request.ranges().end());
    MP_ASSIGN_OR_RETURN(std::unique_ptr<CheckpointReader> reader,
                        store().Read(request.name(), ranges));
    v1::Chunk chunk;
    while (true) {
      absl::StatusOr<bool> more = reader->Next(&chunk);
      if (!more.ok()) {
        Moved(reader->manifest().checkpoint().job());
        return more.status();
      }
      if (!*more) return absl::OkStatus();
      if (!writer->Write(chunk)) return absl::CancelledError("the client has gone");
    }
  }

  Coordinator* const coordinator_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCheckpointService(Coordinator* coordinator) {
  return std::make_unique<CheckpointServiceImpl>(coordinator);
}

}  // namespace milepost::coordinator
