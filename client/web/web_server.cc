#include "client/web/web_server.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/web/json_messages.h"
#include "client/web/openapi.h"
#include "client/web/request_checks.h"
#include "client/web/static_files.h"
#include "common/error_details.h"
#include "common/http/listen.h"
#include "common/pki/secret.h"
#include "common/spec/parse.h"
#include "common/spec/to_yaml.h"
#include "common/spec/validate.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "common/version.h"
#include "milepost/v1/auth.pb.h"

namespace milepost::client {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kApi[] = "/api/v1/";
constexpr char kWhoAmI[] = "/milepost.v1.AuthService/WhoAmI";
constexpr size_t kMostBodyBytes = 1 << 20;
constexpr size_t kMostTokenBytes = 4096;
constexpr int kMostPlans = 4;  // one that is made, and those that wait
constexpr unsigned kConnections = 1000;
constexpr unsigned kConnectionsOfAddress = 500;
// The page asks again by itself: better than many calls that wait.
constexpr absl::Duration kReach = absl::Seconds(2);

ConnectionOptions ConnectionOptionsFor(std::function<void(const std::string&)> warn) {
  ConnectionOptions options;
  options.reach = kReach;
  options.called = "the coordinator";
  options.on_warning = std::move(warn);
  return options;
}

std::string DumpJson(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// One text of a JSON object; INVALID_ARGUMENT: it is none.
absl::StatusOr<Json> BodyOf(const HttpRequest& request) {
  Json body = Json::parse(request.body, nullptr, /*allow_exceptions=*/false);
  if (body.is_object()) return body;
  return absl::InvalidArgumentError("the request is no JSON object");
}

absl::StatusOr<std::string> TextOf(const Json& body, const std::string& name) {
  const auto found = body.find(name);
  if (found != body.end() && found->is_string()) return found->get<std::string>();
  return absl::InvalidArgumentError(absl::StrCat("the request has no text '", name, "'"));
}

absl::StatusOr<std::string> ParseSpec(const Json& body) {
  MP_ASSIGN_OR_RETURN(const std::string yaml, TextOf(body, "yaml"));
  MP_ASSIGN_OR_RETURN(const v1::JobSpec spec, ParseJobSpecYaml(yaml, "spec"));
  return absl::StrCat("{\"spec\":", ToJson(spec), "}");
}

struct PlanWish {
  v1::JobSpec spec;
  std::string device;
};

absl::StatusOr<PlanWish> PlanWishOf(const Json& body) {
  PlanWish wish;
  MP_ASSIGN_OR_RETURN(const std::string yaml, TextOf(body, "yaml"));
  MP_ASSIGN_OR_RETURN(wish.spec, ParseJobSpecYaml(yaml, "spec"));
  if (body.value("device", Json("")).is_string()) wish.device = body.value("device", "");
  return wish;
}

absl::StatusOr<std::string> RenderSpec(const Json& body) {
  const auto found = body.find("spec");
  v1::JobSpec spec;
  MP_RETURN_IF_ERROR(FromJson(found == body.end() ? "" : DumpJson(*found), &spec));
  return DumpJson({{"yaml", MessageToYaml(spec)}});
}

}  // namespace

WebServer::WebServer(WebOptions options)
    : options_(std::move(options)),
      connection_(Connection::To(options_.coordinator,
                                 ConnectionOptionsFor([this](const std::string& text) {
                                   absl::MutexLock lock(&mutex_);
                                   warning_ = text;
                                 }))),
      coordinator_(connection_),
      sessions_(options_.sessions),
      api_(coordinator_, options_.api) {}

WebServer::~WebServer() {
  connection_->Cancel();
  http_.reset();
}

absl::StatusOr<std::unique_ptr<WebServer>> WebServer::Start(WebOptions options) {
  if (!IsLoopback(options.listen)) {
    if (options.tls_dir.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--listen: ", options.listen,
                       " is not a loopback address, and tokens must not travel in plain text: give "
                       "--tls-dir DIR with a certificate, or listen on 127.0.0.1"));
    }
    if (options.coordinator.credentials == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--listen: ", options.listen, " is not a loopback address, and the coordinator lets in ",
          "everybody who reaches it: listen on 127.0.0.1, or give the coordinator certificates"));
    }
  }
  std::unique_ptr<WebServer> server(new WebServer(std::move(options)));
  MP_RETURN_IF_ERROR(server->Listen());
  return server;
}

absl::Status WebServer::Listen() {
  const std::string& listen = options_.listen;
  auto parsed = ParseListen(listen);
  if (!parsed.ok()) return Annotate(parsed.status(), "--listen");
  HostAndPort address = *std::move(parsed);
  const std::string& host = address.host;
  int& port = address.port;
  options_.allow_hosts.push_back(host);
  HttpOptions http{.tls_dir = options_.tls_dir};
  auto sockets = ListenOn(host, &port);
  if (!sockets.ok()) {
    return absl::UnavailableError(
        absl::StrCat("--listen: cannot listen on ", listen, ": ", sockets.status().message()));
  }
  url_ = absl::StrCat(secure() ? "https://" : "http://", host, ":", port, "/");
  // Browsers do not tell ports apart by themselves.
  cookie_ = absl::StrCat(secure() ? "__Host-" : "", "milepost-", port);
  http.sockets = *std::move(sockets);
  http.most_body_bytes = kMostBodyBytes;
  http.connections = kConnections;
  http.connections_of_address = kConnectionsOfAddress;
  http.handler = [this](const HttpRequest& request, const HttpAnswer& answer) {
    Answer(request, answer);
  };
  MP_ASSIGN_OR_RETURN(http_, HttpServer::Start(std::move(http)));
  return absl::OkStatus();
}

void WebServer::Answer(const HttpRequest& request, const HttpAnswer& answer) {
  if (const absl::Status host = CheckHost(request, options_.allow_hosts); !host.ok()) {
    return answer(ErrorResponse(host));
  }
  const bool api = absl::StartsWith(request.path, kApi);
  if (request.method != "POST" && !api) return answer(AnswerFile(request));
  const bool by_cookie = login_needed() && BearerOf(request).empty();
  if (const absl::Status site = CheckSite(request, secure(), by_cookie); !site.ok()) {
    return answer(ErrorResponse(site));
  }
  if (api) return AnswerApi(request, answer);
  if (request.path == "/login") return AnswerLogin(request, answer);
  if (request.path == "/logout") return answer(Logout(request));
  answer(ErrorResponse(absl::NotFoundError("there is no such page")));
}

std::string WebServer::SetCookie(const std::string& value, bool keep) const {
  return absl::StrCat(cookie_, "=", value, "; Path=/; HttpOnly; SameSite=Strict",
                      secure() ? "; Secure" : "", keep ? "" : "; Max-Age=0");
}

absl::StatusOr<Caller> WebServer::CallerOf(const HttpRequest& request) {
  if (!login_needed()) return Caller();
  const std::string bearer = BearerOf(request);
  if (!bearer.empty()) {
    return Caller{.token = bearer.substr(0, kMostTokenBytes), .principal = Sha256(bearer)};
  }
  const std::string id = CookieOf(request, cookie_);
  const auto token = sessions_.Find(id, SteadyNow());
  if (!token.has_value()) {
    return Refusal(v1::ERROR_REASON_CREDENTIALS_MISSING, "", "log in first");
  }
  return Caller{
      .token = *token,
      .principal = Sha256(*token),
      .may_go_on = [this, id] { return sessions_.Find(id, SteadyNow(), false).has_value(); },
      .refused = [this, token = *token] { sessions_.RemoveToken(token); }};
}

void WebServer::AnswerApi(const HttpRequest& request, const HttpAnswer& answer) {
  const std::string path = request.path.substr(sizeof kApi - 1);
  if (path == "openapi.json") return answer(JsonResponse(OpenApiJson()));
  if (path == "session") return AnswerSession(request, answer);
  auto caller = CallerOf(request);
  if (!caller.ok()) return answer(ErrorResponse(caller.status()));
  absl::string_view what = path;
  if (!absl::ConsumePrefix(&what, "spec:")) return api_.Answer(path, request, *caller, answer);
  if (request.method != "POST") {
    return answer({.status = 405, .body = "POST alone\n"});
  }
  api_.calls().Read(
      caller->principal, absl::StrCat(path, " ", request.body),
      [this, request, what = std::string(what), its = *caller] {
        return AnswerSpec(request, what, its);
      },
      answer);
}

absl::StatusOr<std::string> WebServer::Plan(const v1::JobSpec& spec, const std::string& device) {
  const int before = plans_++;
  const absl::Cleanup done = [this] { --plans_; };
  if (before >= kMostPlans) {
    return absl::ResourceExhaustedError("others have specs planned; ask again in a few seconds");
  }
  absl::MutexLock lock(&plan_mutex_);
  return options_.plan(spec, device);
}

// Nothing is worked out for somebody whom the coordinator does not know: no call to it shows that.
HttpResponse WebServer::AnswerSpec(const HttpRequest& request, const std::string& what,
                                   const Caller& caller) {
  if (login_needed()) {
    const auto known = coordinator_.Call(kWhoAmI, "", caller.token);
    if (absl::IsUnauthenticated(known.status()) && caller.refused) caller.refused();
    if (!known.ok()) return ErrorResponse(known.status());
  }
  const auto body = BodyOf(request);
  if (!body.ok()) return ErrorResponse(body.status());
  absl::StatusOr<std::string> json = absl::NotFoundError("there are spec:parse, render and plan");
  if (what == "parse") json = ParseSpec(*body);
  if (what == "render") json = RenderSpec(*body);
  if (what == "plan" && options_.plan) {
    const auto wanted = PlanWishOf(*body);
    json = wanted.ok() ? Plan(wanted->spec, wanted->device) : wanted.status();
  }
  return json.ok() ? JsonResponse(*std::move(json)) : ErrorResponse(json.status());
}

void WebServer::AnswerLogin(const HttpRequest& request, const HttpAnswer& answer) {
  const auto body = BodyOf(request);
  if (!body.ok()) return answer(ErrorResponse(body.status()));
  const auto token = TextOf(*body, "token");
  if (!token.ok()) return answer(ErrorResponse(token.status()));
  api_.calls().Write(
      "login", [this, token = *token] { return Login(token); }, answer);
}

HttpResponse WebServer::Login(const std::string& typed) {
  if (!login_needed()) return JsonResponse("{}");
  const std::string token(absl::StripAsciiWhitespace(typed));
  if (token.empty() || token.size() > kMostTokenBytes) {
    return ErrorResponse(Refusal(v1::ERROR_REASON_TOKEN_UNKNOWN, "", "that is no token"));
  }
  const auto bytes = coordinator_.Call(kWhoAmI, "", token);
  if (!bytes.ok()) return ErrorResponse(bytes.status());
  HttpResponse response = JsonResponse("{}");
  response.headers = {{"Set-Cookie", SetCookie(sessions_.Add(token, SteadyNow()), true)}};
  return response;
}

HttpResponse WebServer::Logout(const HttpRequest& request) {
  sessions_.Remove(CookieOf(request, cookie_));
  HttpResponse response = JsonResponse("{}");
  response.headers = {{"Set-Cookie", SetCookie("", false)}};
  return response;
}

void WebServer::AnswerSession(const HttpRequest& request, const HttpAnswer& answer) {
  const auto caller = CallerOf(request);
  api_.calls().Read(
      caller.ok() ? caller->principal : "nobody", "session",
      [this, caller = caller.ok() ? *caller : Caller(), known = caller.ok()] {
        return DescribeSession(caller, known);
      },
      answer);
}

HttpResponse WebServer::DescribeSession(const Caller& caller, bool logged_in) {
  Json json = {{"loginNeeded", login_needed()},
               {"version", kVersion},
               {"coordinator", options_.coordinator.address},
               {"plans", options_.plan != nullptr}};
  if (logged_in) {
    const auto bytes = coordinator_.Call(kWhoAmI, "", caller.token);
    v1::Principal principal;
    if (!bytes.ok()) {
      if (!absl::IsUnauthenticated(bytes.status())) return ErrorResponse(bytes.status());
      if (caller.refused) caller.refused();
    } else if (principal.ParseFromString(*bytes)) {
      json["principal"] = Json::parse(ToJson(principal), nullptr, /*allow_exceptions=*/false);
    }
  }
  absl::MutexLock lock(&mutex_);
  if (!warning_.empty() && logged_in) json["warning"] = warning_;
  return JsonResponse(DumpJson(json));
}

}  // namespace milepost::client
