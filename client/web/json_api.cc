#include "client/web/json_api.h"

#include <google/protobuf/message.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/api/clients.h"
#include "client/web/json_messages.h"
#include "common/http/http_status.h"
#include "common/status_macros.h"
#include "milepost/v1/job.pb.h"

namespace milepost::client {
namespace {

constexpr char kJson[] = "application/json";
constexpr char kFields[] = "$fields";
constexpr char kListJobs[] = "JobService/ListJobs";

std::string FieldsOf(const HttpRequest& request) {
  for (const auto& [name, value] : request.query) {
    if (name == kFields) return value;
  }
  return "";
}

// So that an attempt whose answer was lost is not carried out twice.
void SetRequestId(google::protobuf::Message* message) {
  const auto* field = message->GetDescriptor()->FindFieldByName("request_id");
  if (field == nullptr) return;
  const google::protobuf::Reflection* reflection = message->GetReflection();
  if (reflection->GetString(*message, field).empty()) {
    reflection->SetString(message, field, NewRequestId());
  }
}

// So that the coordinator leaves out what the caller does not want.
void SetReadMask(absl::string_view fields, v1::ListJobsRequest* request) {
  if (request->has_read_mask()) return;
  for (std::string& path : MaskWithin(fields, *v1::ListJobsResponse::descriptor(), "jobs")) {
    request->mutable_read_mask()->add_paths(std::move(path));
  }
}

absl::StatusOr<std::string> RequestBytes(const ApiMethod& method, const HttpRequest& request) {
  const auto message = method.NewRequest();
  MP_RETURN_IF_ERROR(FromQuery(request.query, message.get()));
  if (!request.body.empty()) {
    message->Clear();
    MP_RETURN_IF_ERROR(FromJson(request.body, message.get()));
  }
  if (!method.reads) SetRequestId(message.get());
  if (method.path == kListJobs) {
    SetReadMask(FieldsOf(request), static_cast<v1::ListJobsRequest*>(message.get()));
  }
  return message->SerializeAsString();
}

}  // namespace

HttpResponse JsonResponse(std::string json) {
  return {.content_type = kJson, .body = std::move(json)};
}

HttpResponse ErrorResponse(const absl::Status& status) {
  return {.status = HttpStatusOf(status), .content_type = kJson, .body = StatusJson(status)};
}

JsonApi::JsonApi(GenericClient coordinator, const JsonApiOptions& options)
    : coordinator_(coordinator),
      watches_(std::move(coordinator), options.watches),
      calls_(options.calls) {}

void JsonApi::Answer(absl::string_view path, const HttpRequest& request, const Caller& caller,
                     const HttpAnswer& answer) {
  const ApiMethod* method = FindApiMethod(path);
  if (method == nullptr) {
    return answer(ErrorResponse(absl::NotFoundError(
        absl::StrCat("there is no method '", path, "'; /api/v1/openapi.json has all of them"))));
  }
  if (request.method != "POST" && !method->reads) {
    HttpResponse refusal = ErrorResponse(
        absl::InvalidArgumentError(absl::StrCat(path, " changes something: it takes POST alone")));
    refusal.status = 405;
    return answer(std::move(refusal));
  }
  const auto bytes = RequestBytes(*method, request);
  if (!bytes.ok()) return answer(ErrorResponse(bytes.status()));
  const std::string fields = FieldsOf(request);
  const absl::Status known = KeepFields(fields, method->NewResponse().get());
  if (!known.ok()) return answer(ErrorResponse(known));
  if (method->streams) {
    if (!absl::StrContains(request.accept, "text/event-stream")) {
      return answer(ErrorResponse(absl::InvalidArgumentError(
          absl::StrCat(path, " is a stream: ask with Accept: text/event-stream"))));
    }
    return watches_.Add({.method = method,
                         .request = *bytes,
                         .fields = fields,
                         .principal = caller.principal,
                         .token = caller.token,
                         .may_go_on = caller.may_go_on},
                        answer);
  }
  auto make = [this, method, bytes = *bytes, fields, caller] {
    return Call(*method, bytes, fields, caller);
  };
  if (!method->reads) return calls_.Write(caller.principal, std::move(make), answer);
  calls_.Read(caller.principal, absl::StrCat(path, " ", fields, " ", *bytes), std::move(make),
              answer);
}

HttpResponse JsonApi::Call(const ApiMethod& method, const std::string& request,
                           const std::string& fields, const Caller& caller) {
  const auto bytes = coordinator_.Call(method.grpc, request, caller.token);
  if (!bytes.ok()) {
    if (absl::IsUnauthenticated(bytes.status()) && caller.refused) caller.refused();
    return ErrorResponse(bytes.status());
  }
  const auto message = method.NewResponse();
  if (!message->ParseFromString(*bytes)) {
    return ErrorResponse(absl::InternalError("the coordinator's answer cannot be read"));
  }
  const absl::Status kept = KeepFields(fields, message.get());
  return kept.ok() ? JsonResponse(ToJson(*message)) : ErrorResponse(kept);
}

}  // namespace milepost::client
