#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/method_handler.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/checksum.h"
#include "common/error_details.h"
#include "common/status_macros.h"
#include "coordinator/desks/coordinator.h"
#include "coordinator/desks/paging.h"
#include "coordinator/rpc/byte_buffer_cord.h"
#include "coordinator/rpc/chunk_message.h"
#include "coordinator/rpc/gate.h"
#include "coordinator/rpc/services.h"
#include "coordinator/security/principal.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/store.h"
#include "milepost/v1/checkpoint.grpc.pb.h"

namespace milepost::coordinator {

namespace {

// A commit waits this long for the streams of other ranks.
constexpr absl::Duration kLongestCommitWait = absl::Minutes(10);

class CheckpointServiceImpl : public v1::CheckpointService::Service {
 public:
  CheckpointServiceImpl(Coordinator* coordinator, Gate* gate)
      : coordinator_(coordinator), gate_(gate) {
    TakeChunksAsTheyCome();
  }

  // ---- of ranks ----
  grpc::Status BeginCheckpoint(grpc::ServerContext* context,
                               const v1::BeginCheckpointRequest* request,
                               v1::BeginCheckpointResponse* response) override {
    return gate_->Serve(
        context, "CheckpointService/BeginCheckpoint", *request,
        Subject::Attempt(request->job(), request->generation()), [&](GateCall&) -> absl::Status {
          MP_RETURN_IF_ERROR(
              coordinator_->attempts().CheckGeneration(request->job(), request->generation()));
          MP_ASSIGN_OR_RETURN(*response->mutable_checkpoint(), store().Begin(*request));
          return absl::OkStatus();
        });
  }
  grpc::Status CommitCheckpoint(grpc::ServerContext* context,
                                const v1::CommitCheckpointRequest* request,
                                v1::Checkpoint* response) override {
    return gate_->Serve(
        context, "CheckpointService/CommitCheckpoint", *request,
        Subject::Attempt(request->job(), request->generation()),
        [&](GateCall& call) -> absl::Status {
          const absl::Time deadline =
              std::min(absl::FromChrono(context->deadline()), absl::Now() + kLongestCommitWait);
          MP_ASSIGN_OR_RETURN(*response,
                              coordinator_->checkpoints().Commit(
                                  *request, {.deadline = deadline,
                                             .gone = [&] { return context->IsCancelled(); },
                                             .holds = [&] { return call.StillHolds(); }}));
          return absl::OkStatus();
        });
  }
  grpc::Status AbortCheckpoint(grpc::ServerContext* context,
                               const v1::AbortCheckpointRequest* request,
                               v1::AbortCheckpointResponse*) override {
    return gate_->Serve(context, "CheckpointService/AbortCheckpoint", *request,
                        Subject::Attempt(request->job(), request->generation()),
                        [&](GateCall&) -> absl::Status {
                          MP_RETURN_IF_ERROR(coordinator_->checkpoints().CheckOwner(
                              request->checkpoint(), request->job(), request->generation()));
                          return store().Abort(request->checkpoint());
                        });
  }

  // ---- of users ----
  grpc::Status GetCheckpoint(grpc::ServerContext* context, const v1::GetCheckpointRequest* request,
                             v1::CheckpointManifest* response) override {
    return gate_->Serve(context, "CheckpointService/GetCheckpoint", *request,
                        Subject::Checkpoint(request->name()), [&](GateCall&) -> absl::Status {
                          MP_ASSIGN_OR_RETURN(*response, store().Get(request->name()));
                          return absl::OkStatus();
                        });
  }
  grpc::Status ListCheckpoints(grpc::ServerContext* context,
                               const v1::ListCheckpointsRequest* request,
                               v1::ListCheckpointsResponse* response) override {
    return gate_->Serve(context, "CheckpointService/ListCheckpoints", *request, Subject::Nothing(),
                        [&](GateCall& call) { return List(*request, call, response); });
  }
  grpc::Status ReadChunks(grpc::ServerContext* context, const v1::ReadChunksRequest* request,
                          grpc::ServerWriter<v1::Chunk>* writer) override {
    return gate_->Serve(context, "CheckpointService/ReadChunks", *request,
                        Subject::Checkpoint(request->name()),
                        [&](GateCall& call) { return Read(*request, call, writer); });
  }
  grpc::Status VerifyCheckpoint(grpc::ServerContext* context,
                                const v1::VerifyCheckpointRequest* request,
                                v1::VerifyCheckpointResponse* response) override {
    return gate_->Serve(context, "CheckpointService/VerifyCheckpoint", *request,
                        Subject::Checkpoint(request->name()),
                        [&](GateCall&) { return Verify(context, request->name(), response); });
  }
  grpc::Status PinCheckpoint(grpc::ServerContext* context, const v1::PinCheckpointRequest* request,
                             v1::Checkpoint* response) override {
    return gate_->Serve(context, "CheckpointService/PinCheckpoint", *request,
                        Subject::Checkpoint(request->name()), [&](GateCall&) -> absl::Status {
                          MP_ASSIGN_OR_RETURN(*response,
                                              store().Pin(request->name(), request->pinned()));
                          return absl::OkStatus();
                        });
  }
  grpc::Status DeleteCheckpoint(grpc::ServerContext* context,
                                const v1::DeleteCheckpointRequest* request,
                                v1::DeleteCheckpointResponse*) override {
    return gate_->Serve(context, "CheckpointService/DeleteCheckpoint", *request,
                        Subject::Checkpoint(request->name()),
                        [&](GateCall&) { return Delete(*request); });
  }
  grpc::Status RestoreCheckpoint(grpc::ServerContext* context,
                                 const v1::RestoreCheckpointRequest* request,
                                 v1::Checkpoint* response) override {
    return gate_->Serve(context, "CheckpointService/RestoreCheckpoint", *request,
                        Subject::Checkpoint(request->name()), [&](GateCall&) -> absl::Status {
                          MP_ASSIGN_OR_RETURN(*response, store().Restore(request->name()));
                          Moved(response->job());
                          return absl::OkStatus();
                        });
  }

 private:
  CheckpointStore& store() { return coordinator_->store().checkpoints(); }

  absl::Status Delete(const v1::DeleteCheckpointRequest& request) {
    MP_ASSIGN_OR_RETURN(const v1::Checkpoint owner, store().Owner(request.name()));
    MP_RETURN_IF_ERROR(coordinator_->checkpoints().Delete(request.name(), request.purge()));
    Moved(owner.job());
    return absl::OkStatus();
  }

  // Also one that ends early may have found damage.
  absl::Status Verify(grpc::ServerContext* context, const std::string& name,
                      v1::VerifyCheckpointResponse* response) {
    MP_ASSIGN_OR_RETURN(const v1::Checkpoint owner, store().Owner(name));
    auto verified = store().Verify(name, [&] { return context->IsCancelled(); });
    Moved(owner.job());
    MP_ASSIGN_OR_RETURN(*response, std::move(verified));
    return absl::OkStatus();
  }

  void Moved(const std::string& job) {
    if (absl::Status status = coordinator_->checkpoints().UpdateNewest(job); !status.ok()) {
      spdlog::warn("the newest checkpoint of {} cannot be noted: {}", job,
                   std::string(status.message()));
    }
  }

  using ChunkMessages = grpc::ServerReader<grpc::ByteBuffer>;

  // In WriteChunks' place: its handler, for messages that protobuf has not copied.
  void TakeChunksAsTheyCome() {
    const google::protobuf::FileDescriptor* file = v1::WriteChunksRequest::descriptor()->file();
    const int method =
        file->FindServiceByName("CheckpointService")->FindMethodByName("WriteChunks")->index();
    using Handler = grpc::internal::ClientStreamingHandler<CheckpointServiceImpl, grpc::ByteBuffer,
                                                           v1::WriteChunksResponse>;
    const auto serve = [](CheckpointServiceImpl* self, grpc::ServerContext* context,
                          ChunkMessages* messages, v1::WriteChunksResponse* response) {
      return self->gate_->Serve(
          context, "CheckpointService/WriteChunks", *response, Subject::Nothing(),
          [&](GateCall& call) { return self->Write(call, messages, response); });
    };
    MarkMethodStreamed(method, new Handler(serve, this));
  }

  absl::Status Write(GateCall& call, ChunkMessages* messages, v1::WriteChunksResponse* response) {
    grpc::ByteBuffer bytes;
    if (!messages->Read(&bytes)) {
      return absl::InvalidArgumentError("the stream ended before its first message");
    }
    ChunkMessage message;
    MP_RETURN_IF_ERROR(ParseChunkMessage(CordOf(bytes), &message));
    const std::string name = message.request.checkpoint();
    const int64_t generation = message.request.generation();
    MP_ASSIGN_OR_RETURN(v1::Checkpoint owner, store().Owner(name));
    call.About(name, "");
    MP_RETURN_IF_ERROR(call.Check(Subject::Attempt(owner.job(), generation)));
    MP_RETURN_IF_ERROR(coordinator_->attempts().CheckGeneration(owner.job(), generation));
    call.EndWithAttempt(owner.job(), generation);
    MP_ASSIGN_OR_RETURN(std::unique_ptr<StreamWriter> stream,
                        store().OpenStream(name, generation, message.request.stream()));
    while (true) {
      MP_RETURN_IF_ERROR(call.StillHolds());
      if (message.request.has_chunk()) {
        MP_RETURN_IF_ERROR(stream->Append(message.request.chunk(), message.data));
      }
      message.data.Clear();
      if (!messages->Read(&bytes)) break;
      MP_RETURN_IF_ERROR(ParseChunkMessage(CordOf(bytes), &message));
    }
    MP_ASSIGN_OR_RETURN(const int64_t written, stream->Finish());
    response->set_bytes(written);
    return absl::OkStatus();
  }

  absl::Status List(const v1::ListCheckpointsRequest& request, const GateCall& call,
                    v1::ListCheckpointsResponse* response) {
    std::map<std::string, bool> seen;  // by job
    const auto sees = [&](const std::string& job) {
      const auto [it, added] = seen.try_emplace(job, false);
      if (added)
        it->second = call.Sees(coordinator_->jobs().ProjectOf(job).value_or(kEveryProject));
      return it->second;
    };
    MP_ASSIGN_OR_RETURN(const int size, PageSize(request.page_size()));
    const std::string filter = absl::StrFormat(
        "%016x", Xxh3(absl::StrCat(request.deleted() ? "bin\n" : "checkpoints\n", request.job())));
    MP_ASSIGN_OR_RETURN(const int64_t before, NumberOfToken(request.page_token(), filter));
    PageRoom room(size);
    for (v1::Checkpoint& checkpoint : store().List(request.job(), request.deleted())) {
      if (before != 0 && CheckpointNumber(checkpoint.name()) >= before) continue;
      if (!sees(checkpoint.job())) continue;
      if (!room.Take(checkpoint)) {
        const std::string& last = response->checkpoints().rbegin()->name();
        response->set_next_page_token(TokenOfNumber(CheckpointNumber(last), filter));
        break;
      }
      *response->add_checkpoints() = std::move(checkpoint);
    }
    return absl::OkStatus();
  }

  absl::Status Read(const v1::ReadChunksRequest& request, const GateCall& call,
                    grpc::ServerWriter<v1::Chunk>* writer) {
    const std::vector<v1::TensorRange> ranges(request.ranges().begin(), request.ranges().end());
    MP_ASSIGN_OR_RETURN(std::unique_ptr<CheckpointReader> reader,
                        store().Read(request.name(), ranges));
    const absl::Status status = Send(*reader, call, writer);
    const bool moved = absl::IsDataLoss(status) || reader->cleared();
    if (moved) Moved(reader->manifest().checkpoint().job());
    return status;
  }

  static absl::Status Send(CheckpointReader& reader, const GateCall& call,
                           grpc::ServerWriter<v1::Chunk>* writer) {
    v1::Chunk chunk;
    while (true) {
      MP_ASSIGN_OR_RETURN(const bool more, reader.Next(&chunk));
      if (!more) return absl::OkStatus();
      MP_RETURN_IF_ERROR(call.StillHolds());
      if (!call.Send(writer, chunk)) return absl::CancelledError("the client has gone");
    }
  }

  Coordinator* const coordinator_;
  Gate* const gate_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCheckpointService(Coordinator* coordinator, Gate* gate) {
  return std::make_unique<CheckpointServiceImpl>(coordinator, gate);
}

}  // namespace milepost::coordinator
