#include <google/protobuf/util/field_mask_util.h>
#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/status.h"
#include "common/status_macros.h"
#include "coordinator/rpc/coordinator.h"
#include "coordinator/rpc/paging.h"
#include "coordinator/rpc/services.h"
#include "milepost/v1/queue.grpc.pb.h"

namespace milepost::coordinator {
namespace {

class QueueServiceImpl : public v1::QueueService::Service {
 public:
  explicit QueueServiceImpl(Coordinator* coordinator) : coordinator_(coordinator) {}

  grpc::Status GetQueue(grpc::ServerContext*, const v1::GetQueueRequest* request,
                        v1::Queue* response) override {
    return Reply(coordinator_->GetQueue(request->name()), response);
  }
  grpc::Status ListQueues(grpc::ServerContext*, const v1::ListQueuesRequest* request,
                          v1::ListQueuesResponse* response) override {
    auto size = PageSize(request->page_size());
    if (!size.ok()) return ToGrpcStatus(size.status());
    std::vector<v1::Queue> queues = coordinator_->ListQueues(request->page_token(), *size + 1);
    const bool more = static_cast<int>(queues.size()) > *size;
    if (more) queues.pop_back();
    if (more) response->set_next_page_token(queues.back().name());
    for (v1::Queue& queue : queues) *response->add_queues() = std::move(queue);
    return grpc::Status::OK;
  }
  grpc::Status CreateQueue(grpc::ServerContext*, const v1::CreateQueueRequest* request,
                           v1::Queue* response) override {
    v1::Queue queue = request->queue();
    queue.set_name(QueueName(request->queue_id()));
    queue.clear_etag();
    return Reply(coordinator_->PutQueue(queue, /*create=*/true, /*allow_missing=*/true,
                                        request->validate_only()),
                 response);
  }
  grpc::Status UpdateQueue(grpc::ServerContext*, const v1::UpdateQueueRequest* request,
                           v1::Queue* response) override {
    auto queue = Updated(*request);
    if (!queue.ok()) return ToGrpcStatus(queue.status());
    return Reply(coordinator_->PutQueue(*queue, /*create=*/false, request->allow_missing(),
                                        request->validate_only()),
                 response);
  }
  grpc::Status DeleteQueue(grpc::ServerContext*, const v1::DeleteQueueRequest* request,
                           v1::DeleteQueueResponse*) override {
    return ToGrpcStatus(coordinator_->DeleteQueue(*request));
  }

 private:
  static grpc::Status Reply(absl::StatusOr<v1::Queue> queue, v1::Queue* response) {
    if (!queue.ok()) return ToGrpcStatus(queue.status());
    *response = *std::move(queue);
    return grpc::Status::OK;
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
    if (auto known = coordinator_->GetQueue(request.queue().name()); known.ok()) {
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
};

}  // namespace

std::unique_ptr<grpc::Service> MakeQueueService(Coordinator* coordinator) {
  return std::make_unique<QueueServiceImpl>(coordinator);
}

}  // namespace milepost::coordinator
