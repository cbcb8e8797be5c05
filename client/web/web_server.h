// Serves the page and the JSON API to browsers and programs: docs/use/web.md.
//
//   WebOptions options;
//   options.listen = "127.0.0.1:7080";
//   options.coordinator = endpoint;        // without a token
//   MP_ASSIGN_OR_RETURN(auto server, WebServer::Start(std::move(options)));
//   Print(server->url());                  // it serves until it is destroyed
//
// It has no rights of its own: every call carries the visitor's token. When the coordinator serves
// plain text on loopback, nobody needs a token, and the server too listens only on loopback.
// Thread-safe.
#ifndef MILEPOST_CLIENT_WEB_WEB_SERVER_H_
#define MILEPOST_CLIENT_WEB_WEB_SERVER_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/api/connection.h"
#include "client/web/json_api.h"
#include "client/web/sessions.h"
#include "common/http/http_server.h"
#include "common/rpc/endpoint.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::client {

struct WebOptions {
  std::string listen = "127.0.0.1:7080";  // port 0: a free one
  std::string tls_dir;                    // common/rpc/endpoint.h; empty: plain text, on loopback
  std::vector<std::string> allow_hosts;   // names for browsers to use, besides loopback's
  Endpoint coordinator;                   // with or without TLS, and without a token
  // Returns as JSON what a spec needs on a device ("h100"; empty: this host). Blocks. May be empty.
  std::function<absl::StatusOr<std::string>(const v1::JobSpec&, const std::string&)> plan;
  SessionOptions sessions;
  JsonApiOptions api;
};

class WebServer {
 public:
  // The server answers when this returns. INVALID_ARGUMENT: it must not listen on this address in
  // this way. UNAVAILABLE: it cannot listen there. Otherwise the errors of ReadTlsFolder.
  static absl::StatusOr<std::unique_ptr<WebServer>> Start(WebOptions options);
  ~WebServer();
  WebServer(const WebServer&) = delete;
  WebServer& operator=(const WebServer&) = delete;

  const std::string& url() const { return url_; }  // "http://127.0.0.1:7080/"
  // The number of streams to the coordinator that are open for pages.
  size_t coordinator_streams() { return api_.watches().streams(); }

 private:
  explicit WebServer(WebOptions options);
  absl::Status Listen();
  void Answer(const HttpRequest& request, const HttpAnswer& answer);
  void AnswerApi(const HttpRequest& request, const HttpAnswer& answer);
  void AnswerLogin(const HttpRequest& request, const HttpAnswer& answer);
  HttpResponse Login(const std::string& token);
  HttpResponse Logout(const HttpRequest& request);
  void AnswerSession(const HttpRequest& request, const HttpAnswer& answer);
  HttpResponse DescribeSession(const Caller& caller, bool logged_in);
  HttpResponse AnswerSpec(const HttpRequest& request, const std::string& what,
                          const Caller& caller);
  absl::StatusOr<std::string> Plan(const v1::JobSpec& spec, const std::string& device);
  // UNAUTHENTICATED: the request has neither token nor session.
  absl::StatusOr<Caller> CallerOf(const HttpRequest& request);
  std::string SetCookie(const std::string& value, bool keep) const;
  bool login_needed() const { return options_.coordinator.credentials != nullptr; }
  bool secure() const { return !options_.tls_dir.empty(); }

  WebOptions options_;
  // Plans are large and use a core each, so only one is made at a time. Waiting ones hold threads
  // of `api_`.
  absl::Mutex plan_mutex_;
  std::atomic<int> plans_ = 0;
  absl::Mutex mutex_;
  std::string warning_ ABSL_GUARDED_BY(mutex_);  // the coordinator's warning
  const std::shared_ptr<Connection> connection_;
  GenericClient coordinator_;
  Sessions sessions_;
  JsonApi api_;
  std::string url_;
  std::string cookie_;  // the cookie's name
  std::unique_ptr<HttpServer> http_;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_WEB_WEB_SERVER_H_
