#include "client/serve/api_server.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/serve/api_answer.h"
#include "client/serve/api_error.h"
#include "client/serve/http_reply.h"
#include "client/web/request_checks.h"
#include "common/http/listen.h"
#include "common/pki/secret.h"
#include "common/rpc/endpoint.h"
#include "common/status_macros.h"

namespace milepost::client {
namespace {

constexpr size_t kMostRequestBytes = 1 << 20;
constexpr unsigned kApiConnections = 256;
constexpr char kModels[] = "/v1/models";
constexpr char kChats[] = "/v1/chat/completions";
constexpr char kCompletions[] = "/v1/completions";

HttpResponse JsonAnswer(const std::string& json) {
  return {.content_type = "application/json", .body = json + "\n"};
}

HttpResponse RefusalAnswer(int status, const std::string& why) {
  return {
      .status = status, .content_type = "application/json", .body = ErrorJson(status, why) + "\n"};
}

// "::1" and "[::1]" are the same host.
std::string Bracketed(const std::string& host) {
  return absl::StrContains(host, ':') && !absl::StartsWith(host, "[") ? absl::StrCat("[", host, "]")
                                                                      : host;
}

bool HasPath(const std::string& path) {
  return path == "/health" || path == kModels || absl::StartsWith(path, "/v1/models/") ||
         path == kChats || path == kCompletions;
}

}  // namespace

absl::StatusOr<ApiListener> ApiListener::Open(const ApiOptions& options) {
  const std::string host = Bracketed(options.host);
  int port = options.port;
  if (options.key.empty() && !IsLoopback(absl::StrCat(host, ":1"))) {
    return absl::InvalidArgumentError(
        absl::StrCat("--host: ", options.host,
                     " is not a loopback address, and everybody who reaches it could use the "
                     "model: give --api-key-file FILE with a key that clients must show, or listen "
                     "on 127.0.0.1"));
  }
  ApiListener listener;
  auto sockets = ListenOn(host, &port);
  if (!sockets.ok()) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", host, ":", options.port, ": ",
                                               sockets.status().message(),
                                               " (--port 0 takes a free one)"));
  }
  listener.sockets = *std::move(sockets);
  listener.url = absl::StrCat(options.tls_dir.empty() ? "http" : "https", "://", host, ":", port);
  return listener;
}

ApiServer::ApiServer(ApiOptions options, TextModel* model)
    : options_(std::move(options)), model_(model), run_(RandomHex(8)) {}

absl::StatusOr<std::unique_ptr<ApiServer>> ApiServer::Start(ApiOptions options,
                                                            ApiListener listener,
                                                            TextModel* model) {
  std::unique_ptr<ApiServer> server(new ApiServer(std::move(options), model));
  ApiServer* raw = server.get();
  server->url_ = listener.url;
  server->queue_ = std::make_unique<TextQueue>(
      server->options_.most_waiting, static_cast<size_t>(model->facts().texts),
      [raw](TextQueue::Waiting& one) { raw->AnswerWaiting(one); });
  HttpOptions http{.sockets = std::move(listener.sockets), .tls_dir = server->options_.tls_dir};
  http.handler = [raw](const HttpRequest& request, const HttpAnswer& answer) {
    raw->Answer(request, answer);
  };
  http.refusal = RefusalAnswer;
  http.most_body_bytes = kMostRequestBytes;
  http.connections = kApiConnections;
  MP_ASSIGN_OR_RETURN(server->http_, HttpServer::Start(std::move(http)));
  return server;
}

// First the clients: then the queue finds that all have left.
ApiServer::~ApiServer() {
  http_.reset();
  queue_.reset();
}

absl::Status ApiServer::CheckCaller(const HttpRequest& request) const {
  if (options_.key.empty()) {
    // A page of another site could make a browser on this host ask, by a name that leads here.
    const std::string host = HostOf(request.host);
    if (host.empty() || !IsLoopback(host + ":1")) {
      return absl::PermissionDeniedError(absl::StrCat("this server is not called '", host,
                                                      "': use localhost, or start it with ",
                                                      "--api-key-file"));
    }
    return CheckSite(request, !options_.tls_dir.empty(), /*by_cookie=*/false);
  }
  const std::string shown = BearerOf(request);
  if (SameSecret(Sha256(shown), Sha256(options_.key))) {
    return CheckSite(request, !options_.tls_dir.empty(), /*by_cookie=*/false);
  }
  return WithErrorCode(
      absl::UnauthenticatedError(shown.empty() ? "no API key: send Authorization: Bearer KEY"
                                               : "this is not the server's API key"),
      "invalid_api_key");
}

void ApiServer::Answer(const HttpRequest& request, const HttpAnswer& answer) {
  if (!HasPath(request.path)) {
    return answer(ApiErrorResponse(absl::NotFoundError(
        absl::StrCat("there is no ", request.path, ": this server has ", kCompletions, ", ", kChats,
                     ", ", kModels, " and /health"))));
  }
  const bool text = request.path == kChats || request.path == kCompletions;
  if (text != (request.method == "POST")) {
    return answer(RefusalAnswer(405, text ? "POST alone" : "GET alone"));
  }
  if (request.path == "/health") return answer(JsonAnswer(R"({"status":"ok"})"));
  const absl::Status caller = CheckCaller(request);
  if (!caller.ok()) return answer(ApiErrorResponse(caller));
  if (!text) return answer(AnswerModels(request));
  AnswerText(request.path == kChats, request, answer);
}

HttpResponse ApiServer::AnswerModels(const HttpRequest& request) const {
  if (request.path == kModels) return JsonAnswer(ModelsJson(options_.model, options_.created));
  const absl::string_view name = absl::string_view(request.path).substr(sizeof kModels);
  if (name == options_.model) return JsonAnswer(ModelJson(options_.model, options_.created));
  return ApiErrorResponse(
      WithErrorCode(absl::NotFoundError(absl::StrCat("there is no model '", name,
                                                     "': this server has '", options_.model, "'")),
                    "model_not_found"));
}

void ApiServer::AnswerText(bool chat, const HttpRequest& request, const HttpAnswer& answer) {
  auto parsed = chat ? ParseChatRequest(request.body) : ParseCompletionRequest(request.body);
  if (!parsed.ok()) return answer(ApiErrorResponse(parsed.status()));
  if (!parsed->model.empty() && parsed->model != options_.model) {
    return answer(ApiErrorResponse(WithErrorCode(
        absl::NotFoundError(absl::StrCat("there is no model '", parsed->model,
                                         "': this server has '", options_.model, "'")),
        "model_not_found")));
  }
  if (chat && !model_->facts().chat.ok()) {
    return answer(ApiErrorResponse(model_->facts().chat));
  }
  TextQueue::Waiting one = {.request = *std::move(parsed),
                            .reply = std::make_unique<HttpReply>(answer)};
  if (queue_->Add(std::move(one))) return;
  answer(ApiErrorResponse(WithErrorCode(
      absl::ResourceExhaustedError(absl::StrCat(
          "this server answers ", model_->facts().texts, " requests at a time, and ",
          options_.most_waiting, " wait already: ask again later (`milepost serve --parallel` is ",
          "the number)")),
      "queue_full")));
}

void ApiServer::AnswerWaiting(TextQueue::Waiting& one) {
  const AnswerContext context = {
      .id = absl::StrCat(one.request.chat ? "chatcmpl-" : "cmpl-", run_, "-", ++answers_),
      .created = options_.now(),
      .model = options_.model,
      .seed = options_.seed()};
  const absl::Status status = AnswerRequest(one.request, context, *model_, *one.reply);
  if (!status.ok()) options_.model_ended();
}

}  // namespace milepost::client
