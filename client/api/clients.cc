#include "client/api/clients.h"

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/api/call.h"
#include "common/error_details.h"
#include "common/proto_time.h"
#include "common/status_macros.h"
#include "milepost/v1/auth.grpc.pb.h"
#include "milepost/v1/checkpoint.grpc.pb.h"
#include "milepost/v1/job.grpc.pb.h"
#include "milepost/v1/join.grpc.pb.h"
#include "milepost/v1/queue.grpc.pb.h"
#include "milepost/v1/template.grpc.pb.h"
#include "milepost/v1/worker.grpc.pb.h"

namespace milepost::client {
namespace {

constexpr int kPageSize = 500;
constexpr absl::Duration kLongestVerify = absl::Hours(24);
constexpr absl::Duration kMostSkew = absl::Minutes(10);

// Calls Service's `method` once, with retries.
template <typename Service, typename Request, typename Response>
absl::StatusOr<Response> Unary(Connection& connection,
                               grpc::Status (Service::Stub::*method)(grpc::ClientContext*,
                                                                     const Request&, Response*),
                               const Request& request,
                               std::optional<absl::Duration> longest = std::nullopt) {
  Connection::Core& core = connection.core();
  return Call<Service>(core, method, request, longest.value_or(core.options.call));
}

// The same for a deletion: what an earlier attempt has deleted is deleted.
template <typename Service, typename Request, typename Response>
absl::Status UnaryDelete(Connection& connection,
                         grpc::Status (Service::Stub::*method)(grpc::ClientContext*, const Request&,
                                                               Response*),
                         const Request& request) {
  Connection::Core& core = connection.core();
  bool sent_before = false;
  const absl::Status status =
      Call<Service>(core, method, request, core.options.call, &sent_before).status();
  return sent_before && absl::IsNotFound(status) ? absl::OkStatus() : status;
}

// The same for what is made without a request_id.
template <typename Service, typename Request, typename Response>
absl::StatusOr<Response> UnaryCreate(Connection& connection,
                                     grpc::Status (Service::Stub::*method)(grpc::ClientContext*,
                                                                           const Request&,
                                                                           Response*),
                                     const Request& request) {
  Connection::Core& core = connection.core();
  bool sent_before = false;
  auto made = Call<Service>(core, method, request, core.options.call, &sent_before);
  if (!sent_before || !absl::IsAlreadyExists(made.status())) return made;
  return Annotate(made.status(),
                  "an earlier try of this call, whose answer was lost, may have made it");
}

// Every page of a List call; `items` takes the repeated field out of one.
template <typename Service, typename Request, typename Response, typename Item>
absl::StatusOr<std::vector<Item>> ListAll(
    Connection& connection,
    grpc::Status (Service::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
    Request request, google::protobuf::RepeatedPtrField<Item>* (Response::*items)(), int limit) {
  std::vector<Item> all;
  while (static_cast<int>(all.size()) < limit) {
    request.set_page_size(std::min<int>(kPageSize, limit - all.size()));
    MP_ASSIGN_OR_RETURN(Response page, (Unary<Service>(connection, method, request)));
    for (Item& item : *(page.*items)()) all.push_back(std::move(item));
    if (page.next_page_token().empty()) break;
    if (page.next_page_token() == request.page_token()) {
      return absl::InternalError("the coordinator gives the same page of a list again and again");
    }
    request.set_page_token(page.next_page_token());
  }
  return all;
}

// From when on lines may be new where the newest ones of each rank are of these times. Every host
// has its own clock: that of a rank which has said nothing yet may be behind the others'.
absl::Time ResumeTime(const std::map<int32_t, absl::Time>& said) {
  absl::Time first = absl::InfiniteFuture();
  for (const auto& [rank, time] : said) first = std::min(first, time);
  return first - kMostSkew;
}

}  // namespace

std::string NewRequestId() {
  std::random_device random;
  const auto bits = [&] { return (static_cast<uint64_t>(random()) << 32) | random(); };
  const uint64_t high = (bits() & ~0xf000ull) | 0x4000;  // version 4
  const uint64_t low = (bits() & ~(3ull << 62)) | (2ull << 62);
  return absl::StrFormat("%08x-%04x-%04x-%04x-%012x", high >> 32, (high >> 16) & 0xffff,
                         high & 0xffff, low >> 48, low & 0xffffffffffff);
}

bool IsTerminal(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

JobClient::JobClient(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}

absl::StatusOr<v1::Job> JobClient::Submit(const v1::JobSpec& spec, bool validate_only) {
  return Submit(spec, validate_only, Place());
}

absl::StatusOr<v1::Job> JobClient::Submit(const v1::JobSpec& spec, bool validate_only,
                                          const Place& place) {
  v1::SubmitJobRequest request;
  *request.mutable_spec() = spec;
  request.set_validate_only(validate_only);
  request.set_rank_memory_bytes(place.rank_memory_bytes);
  request.set_rank_threads(place.rank_threads);
  return Submit(std::move(request));
}

absl::StatusOr<v1::Job> JobClient::Submit(v1::SubmitJobRequest request) {
  request.set_request_id(NewRequestId());
  if (request.project().empty()) request.set_project(project_);
  return Unary<v1::JobService>(*connection_, &v1::JobService::Stub::SubmitJob, request);
}

absl::StatusOr<v1::Job> JobClient::Fork(v1::ForkJobRequest request) {
  request.set_request_id(NewRequestId());
  return Unary<v1::JobService>(*connection_, &v1::JobService::Stub::ForkJob, request);
}

absl::StatusOr<v1::SubmitJobArrayResponse> JobClient::SubmitArray(
    v1::SubmitJobArrayRequest request) {
  request.set_request_id(NewRequestId());
  if (request.project().empty()) request.set_project(project_);
  return Unary<v1::JobService>(*connection_, &v1::JobService::Stub::SubmitJobArray, request);
}

absl::StatusOr<v1::CancelJobArrayResponse> JobClient::CancelArray(const std::string& array) {
  v1::CancelJobArrayRequest request;
  request.set_array(array);
  return Unary<v1::JobService>(*connection_, &v1::JobService::Stub::CancelJobArray, request);
}

absl::StatusOr<v1::JobCurves> JobClient::Curves(const std::string& name, int max_points) {
  v1::GetJobCurvesRequest request;
  request.set_name(name);
  request.set_max_points(max_points);
  return Unary<v1::JobService>(*connection_, &v1::JobService::Stub::GetJobCurves, request);
}

absl::StatusOr<v1::Job> JobClient::Get(const std::string& name) {
  v1::GetJobRequest request;
  request.set_name(name);
  return Unary<v1::JobService>(*connection_, &v1::JobService::Stub::GetJob, request);
}

absl::StatusOr<std::vector<v1::Job>> JobClient::List(int limit, v1::ListJobsRequest filter) {
  if (filter.project().empty()) filter.set_project(project_);
  return ListAll<v1::JobService>(*connection_, &v1::JobService::Stub::ListJobs, filter,
                                 &v1::ListJobsResponse::mutable_jobs, limit);
}

absl::StatusOr<v1::Job> JobClient::Cancel(const std::string& name) {
  v1::CancelJobRequest request;
  request.set_name(name);
  return Unary<v1::JobService>(*connection_, &v1::JobService::Stub::CancelJob, request);
}

absl::StatusOr<v1::DeleteJobResponse> JobClient::Delete(const std::string& name) {
  v1::DeleteJobRequest request;
  request.set_name(name);
  Connection::Core& core = connection_->core();
  bool sent_before = false;
  auto deleted = Call<v1::JobService>(core, &v1::JobService::Stub::DeleteJob, request,
                                      core.options.call, &sent_before);
  // An earlier try, whose answer was lost, has.
  if (sent_before && absl::IsNotFound(deleted.status())) return v1::DeleteJobResponse();
  return deleted;
}

absl::StatusOr<v1::Job> JobClient::Resume(const std::string& name,
                                          std::optional<int64_t> new_steps) {
  v1::ResumeJobRequest request;
  request.set_name(name);
  request.set_request_id(NewRequestId());
  if (new_steps) request.set_new_steps(*new_steps);
  return Unary<v1::JobService>(*connection_, &v1::JobService::Stub::ResumeJob, request);
}

absl::StatusOr<v1::Job> JobClient::Suspend(const std::string& name) {
  v1::SuspendJobRequest request;
  request.set_name(name);
  return Unary<v1::JobService>(*connection_, &v1::JobService::Stub::SuspendJob, request);
}

absl::StatusOr<v1::Job> JobClient::Update(const v1::UpdateJobRequest& request) {
  return Unary<v1::JobService>(*connection_, &v1::JobService::Stub::UpdateJob, request);
}

absl::Status JobClient::Watch(const std::string& name,
                              const std::function<bool(const v1::Job&)>& on_job) {
  v1::GetJobRequest request;
  request.set_name(name);
  return Stream<v1::JobService>(connection_->core(), &v1::JobService::Stub::WatchJob, request,
                                on_job);
}

absl::Status JobClient::StreamLogs(v1::StreamLogsRequest request,
                                   const std::function<bool(const v1::LogLine&)>& on_line) {
  const absl::Time asked = request.has_since() ? FromProto(request.since()) : absl::InfinitePast();
  uint64_t last = 0;
  std::map<int32_t, absl::Time> said;  // by rank: the time of its newest line
  std::optional<v1::LogLine> dropped;  // told with the next line that is new
  const std::function<bool(const v1::LogLine&)> once = [&](const v1::LogLine& line) {
    if (line.dropped_lines() > 0) {
      dropped = line;
      return true;
    }
    const std::optional<v1::LogLine> before = std::exchange(dropped, std::nullopt);
    if (line.sequence() != 0 && line.sequence() <= last) return true;
    last = line.sequence();
    said[line.rank()] = FromProto(line.time());
    // A stream that is opened again starts where this one broke, not N lines before the end.
    request.set_tail(0);
    *request.mutable_since() = ToProto(std::max(asked, ResumeTime(said)));
    return (!before || on_line(*before)) && on_line(line);
  };
  MP_RETURN_IF_ERROR(Stream<v1::JobService>(connection_->core(), &v1::JobService::Stub::StreamLogs,
                                            request, once));
  if (dropped) on_line(*dropped);
  return absl::OkStatus();
}

CheckpointClient::CheckpointClient(std::shared_ptr<Connection> connection)
    : connection_(std::move(connection)) {}

absl::StatusOr<std::vector<v1::Checkpoint>> CheckpointClient::List(const std::string& job,
                                                                   int limit, bool deleted) {
  v1::ListCheckpointsRequest request;
  request.set_job(job);
  request.set_deleted(deleted);
  return ListAll<v1::CheckpointService>(*connection_, &v1::CheckpointService::Stub::ListCheckpoints,
                                        request, &v1::ListCheckpointsResponse::mutable_checkpoints,
                                        limit);
}

absl::StatusOr<v1::CheckpointManifest> CheckpointClient::Get(const std::string& name) {
  v1::GetCheckpointRequest request;
  request.set_name(name);
  return Unary<v1::CheckpointService>(*connection_, &v1::CheckpointService::Stub::GetCheckpoint,
                                      request);
}

absl::Status CheckpointClient::Read(const v1::ReadChunksRequest& request,
                                    const std::function<bool(const v1::Chunk&)>& on_chunk) {
  return Stream<v1::CheckpointService>(connection_->core(),
                                       &v1::CheckpointService::Stub::ReadChunks, request, on_chunk);
}

absl::StatusOr<v1::VerifyCheckpointResponse> CheckpointClient::Verify(const std::string& name) {
  v1::VerifyCheckpointRequest request;
  request.set_name(name);
  return Unary<v1::CheckpointService>(*connection_, &v1::CheckpointService::Stub::VerifyCheckpoint,
                                      request, kLongestVerify);
}

absl::StatusOr<v1::Checkpoint> CheckpointClient::Pin(const std::string& name, bool pinned) {
  v1::PinCheckpointRequest request;
  request.set_name(name);
  request.set_pinned(pinned);
  return Unary<v1::CheckpointService>(*connection_, &v1::CheckpointService::Stub::PinCheckpoint,
                                      request);
}

absl::StatusOr<v1::Checkpoint> CheckpointClient::Restore(const std::string& name) {
  v1::RestoreCheckpointRequest request;
  request.set_name(name);
  return Unary<v1::CheckpointService>(*connection_, &v1::CheckpointService::Stub::RestoreCheckpoint,
                                      request);
}

absl::Status CheckpointClient::Delete(const std::string& name, bool purge) {
  v1::DeleteCheckpointRequest request;
  request.set_name(name);
  request.set_purge(purge);
  return UnaryDelete<v1::CheckpointService>(
      *connection_, &v1::CheckpointService::Stub::DeleteCheckpoint, request);
}

WorkerClient::WorkerClient(std::shared_ptr<Connection> connection)
    : connection_(std::move(connection)) {}

absl::StatusOr<v1::Worker> WorkerClient::Get(const std::string& name) {
  v1::GetWorkerRequest request;
  request.set_name(name);
  return Unary<v1::WorkerService>(*connection_, &v1::WorkerService::Stub::GetWorker, request);
}

absl::StatusOr<std::vector<v1::Worker>> WorkerClient::List(int limit) {
  return ListAll<v1::WorkerService>(*connection_, &v1::WorkerService::Stub::ListWorkers,
                                    v1::ListWorkersRequest(),
                                    &v1::ListWorkersResponse::mutable_workers, limit);
}

absl::StatusOr<v1::Worker> WorkerClient::Drain(const v1::DrainWorkerRequest& request) {
  return Unary<v1::WorkerService>(*connection_, &v1::WorkerService::Stub::DrainWorker, request);
}

absl::StatusOr<v1::Worker> WorkerClient::Resume(const std::string& name) {
  v1::ResumeWorkerRequest request;
  request.set_name(name);
  return Unary<v1::WorkerService>(*connection_, &v1::WorkerService::Stub::ResumeWorker, request);
}

absl::Status WorkerClient::Delete(const std::string& name) {
  v1::DeleteWorkerRequest request;
  request.set_name(name);
  return UnaryDelete<v1::WorkerService>(*connection_, &v1::WorkerService::Stub::DeleteWorker,
                                        request);
}

QueueClient::QueueClient(std::shared_ptr<Connection> connection)
    : connection_(std::move(connection)) {}

absl::StatusOr<v1::Queue> QueueClient::Get(const std::string& name) {
  v1::GetQueueRequest request;
  request.set_name(name);
  return Unary<v1::QueueService>(*connection_, &v1::QueueService::Stub::GetQueue, request);
}

absl::StatusOr<std::vector<v1::Queue>> QueueClient::List(int limit) {
  return ListAll<v1::QueueService>(*connection_, &v1::QueueService::Stub::ListQueues,
                                   v1::ListQueuesRequest(), &v1::ListQueuesResponse::mutable_queues,
                                   limit);
}

absl::StatusOr<v1::Queue> QueueClient::Create(const v1::CreateQueueRequest& request) {
  return UnaryCreate<v1::QueueService>(*connection_, &v1::QueueService::Stub::CreateQueue, request);
}

absl::StatusOr<v1::Queue> QueueClient::Update(const v1::UpdateQueueRequest& request) {
  return Unary<v1::QueueService>(*connection_, &v1::QueueService::Stub::UpdateQueue, request);
}

absl::Status QueueClient::Delete(const std::string& name) {
  v1::DeleteQueueRequest request;
  request.set_name(name);
  return UnaryDelete<v1::QueueService>(*connection_, &v1::QueueService::Stub::DeleteQueue, request);
}

TemplateClient::TemplateClient(std::shared_ptr<Connection> connection)
    : connection_(std::move(connection)) {}

absl::StatusOr<v1::Template> TemplateClient::Get(const std::string& name) {
  v1::GetTemplateRequest request;
  request.set_name(name);
  return Unary<v1::TemplateService>(*connection_, &v1::TemplateService::Stub::GetTemplate, request);
}

absl::StatusOr<std::vector<v1::Template>> TemplateClient::List(const std::string& project,
                                                               int limit) {
  v1::ListTemplatesRequest request;
  request.set_project(project);
  return ListAll<v1::TemplateService>(*connection_, &v1::TemplateService::Stub::ListTemplates,
                                      request, &v1::ListTemplatesResponse::mutable_templates,
                                      limit);
}

absl::StatusOr<v1::Template> TemplateClient::Put(const v1::Template& wanted, bool replace,
                                                 bool validate_only) {
  if (replace) {
    v1::UpdateTemplateRequest request;
    *request.mutable_template_() = wanted;
    request.set_allow_missing(wanted.etag().empty());
    request.set_validate_only(validate_only);
    return Unary<v1::TemplateService>(*connection_, &v1::TemplateService::Stub::UpdateTemplate,
                                      request);
  }
  v1::CreateTemplateRequest request;
  const std::vector<std::string> parts = absl::StrSplit(wanted.name(), '/');
  if (parts.size() != 4) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a template such as gpt2 or projects/p/templates/gpt2, not '",
                     wanted.name(), "'"));
  }
  request.set_project(parts[1]);
  request.set_template_id(parts[3]);
  *request.mutable_template_() = wanted;
  request.set_validate_only(validate_only);
  return UnaryCreate<v1::TemplateService>(*connection_, &v1::TemplateService::Stub::CreateTemplate,
                                          request);
}

absl::Status TemplateClient::Delete(const std::string& name) {
  v1::DeleteTemplateRequest request;
  request.set_name(name);
  return UnaryDelete<v1::TemplateService>(*connection_, &v1::TemplateService::Stub::DeleteTemplate,
                                          request);
}

AuthClient::AuthClient(std::shared_ptr<Connection> connection)
    : connection_(std::move(connection)) {}

absl::StatusOr<v1::Principal> AuthClient::WhoAmI() {
  return Unary<v1::AuthService>(*connection_, &v1::AuthService::Stub::WhoAmI, v1::WhoAmIRequest());
}

absl::StatusOr<v1::CreateTokenResponse> AuthClient::Create(const v1::CreateTokenRequest& request) {
  return Unary<v1::AuthService>(*connection_, &v1::AuthService::Stub::CreateToken, request);
}

absl::StatusOr<std::vector<v1::Token>> AuthClient::List(int limit) {
  return ListAll<v1::AuthService>(*connection_, &v1::AuthService::Stub::ListTokens,
                                  v1::ListTokensRequest(), &v1::ListTokensResponse::mutable_tokens,
                                  limit);
}

absl::StatusOr<v1::Token> AuthClient::Revoke(const std::string& name) {
  v1::RevokeTokenRequest request;
  request.set_name(name);
  return Unary<v1::AuthService>(*connection_, &v1::AuthService::Stub::RevokeToken, request);
}

JoinTokenClient::JoinTokenClient(std::shared_ptr<Connection> connection)
    : connection_(std::move(connection)) {}

absl::StatusOr<v1::CreateJoinTokenResponse> JoinTokenClient::Create(
    const v1::CreateJoinTokenRequest& request) {
  return Unary<v1::JoinService>(*connection_, &v1::JoinService::Stub::CreateJoinToken, request);
}

absl::StatusOr<std::vector<v1::JoinToken>> JoinTokenClient::List(int limit) {
  return ListAll<v1::JoinService>(*connection_, &v1::JoinService::Stub::ListJoinTokens,
                                  v1::ListJoinTokensRequest(),
                                  &v1::ListJoinTokensResponse::mutable_join_tokens, limit);
}

absl::StatusOr<v1::JoinToken> JoinTokenClient::Revoke(const std::string& name) {
  v1::RevokeJoinTokenRequest request;
  request.set_name(name);
  return Unary<v1::JoinService>(*connection_, &v1::JoinService::Stub::RevokeJoinToken, request);
}

}  // namespace milepost::client
