#include <google/protobuf/util/field_mask_util.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "coordinator/desks/coordinator.h"
#include "coordinator/desks/paging.h"
#include "coordinator/rpc/gate.h"
#include "coordinator/rpc/services.h"
#include "milepost/v1/queue.grpc.pb.h"

namespace milepost::coordinator {
namespace {

constexpr char kQueueList[] = "queues";

class QueueServiceImpl : public v1::QueueService::Service {
 public:
  QueueServiceImpl(Coordinator* coordinator, Gate* gate) : coordinator_(coordinator), gate_(gate) {}

  grpc::Status GetQueue(grpc::ServerContext* context, const v1::GetQueueRequest* request,
                        v1::Queue* response) override {
    return Serve(context, "QueueService/GetQueue", *request, request->name(), response,
                 [&] { return coordinator_->queues().Get(request->name()); });
  }
  grpc::Status ListQueues(grpc::ServerContext* context, const v1::ListQueuesRequest* request,
                          v1::ListQueuesResponse* response) override {
    return gate_->Serve(context, "QueueService/ListQueues", *request, Subject::Nothing(),
                        [&](GateCall&) { return List(*request, response); });
  }
  grpc::Status CreateQueue(grpc::ServerContext* context, const v1::CreateQueueRequest* request,
                           v1::Queue* response) override {
    v1::Queue queue = request->queue();
    queue.set_name(QueueName(request->queue_id()));
    queue.clear_etag();
    return Serve(context, "QueueService/CreateQueue", *request, queue.name(), response, [&] {
      return coordinator_->queues().Put(queue, /*create=*/true, /*allow_missing=*/true,
                                        request->validate_only());
    });
  }
  grpc::Status UpdateQueue(grpc::ServerContext* context, const v1::UpdateQueueRequest* request,
                           v1::Queue* response) override {
    return Serve(context, "QueueService/UpdateQueue", *request, request->queue().name(), response,
                 [&]() -> absl::StatusOr<v1::Queue> {
                   MP_ASSIGN_OR_RETURN(const v1::Queue queue, Updated(*request));
                   return coordinator_->queues().Put(
                       queue, /*create=*/false, request->allow_missing(), request->validate_only());
                 });
  }
  grpc::Status DeleteQueue(grpc::ServerContext* context, const v1::DeleteQueueRequest* request,
                           v1::DeleteQueueResponse*) override {
    return gate_->Serve(context, "QueueService/DeleteQueue", *request, Subject::Nothing(),
                        [&](GateCall& call) {
                          call.About(request->name(), "");
                          return coordinator_->queues().Delete(*request);
                        });
  }

 private:
  grpc::Status Serve(grpc::ServerContext* context, absl::string_view method,
                     const google::protobuf::Message& request, const std::string& name,
                     v1::Queue* response,
                     const std::function<absl::StatusOr<v1::Queue>()>& action) {
    return gate_->Serve(context, method, request, Subject::Nothing(),
                        [&](GateCall& call) -> absl::Status {
                          call.About(name, "");
                          MP_ASSIGN_OR_RETURN(*response, action());
                          return absl::OkStatus();
                        });
  }

  absl::Status List(const v1::ListQueuesRequest& request, v1::ListQueuesResponse* response) {
    MP_ASSIGN_OR_RETURN(const int size, PageSize(request.page_size()));
    MP_ASSIGN_OR_RETURN(const std::string after, NameOfToken(request.page_token(), kQueueList));
    std::vector<v1::Queue> queues = coordinator_->queues().List(after, size + 1);
    if (FillPage(std::move(queues), size, response->mutable_queues())) {
      response->set_next_page_token(TokenOfName(response->queues().rbegin()->name(), kQueueList));
    }
    return absl::OkStatus();
  }

  // The queue with what the mask names; all that can be changed where it names nothing.
  absl::StatusOr<v1::Queue> Updated(const v1::UpdateQueueRequest& request) {
    google::protobuf::FieldMask mask = request.update_mask();
    if (mask.paths().empty()) {
      for (const char* field : {"weight", "quotas", "description"}) mask.add_paths(field);
    }
    for (const std::string& path : mask.paths()) {
      if (path == "weight" || path == "quotas" || path == "description") continue;
      return absl::InvalidArgumentError(
          absl::StrCat("update_mask: '", path,
                       "' cannot be changed; what can are weight, quotas and description"));
    }
    v1::Queue queue;
    queue.set_name(request.queue().name());
    if (auto known = coordinator_->queues().Get(request.queue().name()); known.ok()) {
      queue = *std::move(known);  // with its etag: another change in between is refused
    }
    if (!request.queue().etag().empty()) queue.set_etag(request.queue().etag());
    using google::protobuf::util::FieldMaskUtil;
    FieldMaskUtil::MergeOptions options;
    options.set_replace_repeated_fields(true);
    FieldMaskUtil::MergeMessageTo(request.queue(), mask, options, &queue);
    return queue;
  }

  Coordinator* const coordinator_;
  Gate* const gate_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeQueueService(Coordinator* coordinator, Gate* gate) {
  return std::make_unique<QueueServiceImpl>(coordinator, gate);
}

}  // namespace milepost::coordinator
