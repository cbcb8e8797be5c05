// An HTTP server before one model, in the form of OpenAI's API: docs/use/fine-tuning.md.
//
//   MP_ASSIGN_OR_RETURN(ApiListener listener, ApiListener::Open(options));
//   ... load the model; who connects meanwhile waits ...
//   MP_ASSIGN_OR_RETURN(auto server, ApiServer::Start(options, std::move(listener), model));
//   Print(server->url());                  // it serves until it is destroyed
//
// All is bounded: a request's body, the requests that wait, the tokens of an answer, what waits for
// a slow reader, connections. Nothing is kept of a request. Thread-safe.
#ifndef MILEPOST_CLIENT_SERVE_API_SERVER_H_
#define MILEPOST_CLIENT_SERVE_API_SERVER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/serve/text_model.h"
#include "client/serve/text_queue.h"
#include "common/http/http_server.h"
#include "common/unique_fd.h"

namespace milepost::client {

struct ApiOptions {
  std::string host = "127.0.0.1";
  int port = 8000;                 // 0: a free one
  std::string tls_dir;             // common/rpc/endpoint.h; empty: plain text
  std::string key;                 // what clients must show as a bearer token; empty: nothing
  std::string model;               // the model's name in the API
  int64_t created = 0;             // Unix seconds
  size_t most_waiting = 16;        // requests, besides those that are answered
  std::function<int64_t()> now;    // Unix seconds; must be set
  std::function<uint64_t()> seed;  // of requests without one; must be set
  std::function<void()> model_ended = [] {};  // called when the model cannot go on
};

// Sockets that listen. Whoever connects before there is a server waits for it.
struct ApiListener {
  // INVALID_ARGUMENT: it must not listen there without a key, or the address is none. UNAVAILABLE:
  // it cannot listen there.
  static absl::StatusOr<ApiListener> Open(const ApiOptions& options);

  std::vector<UniqueFd> sockets;
  std::string url;  // "http://127.0.0.1:8000"
};

class ApiServer {
 public:
  // The server answers when this returns. `model` must outlive it. Otherwise HttpServer's errors.
  static absl::StatusOr<std::unique_ptr<ApiServer>> Start(ApiOptions options, ApiListener listener,
                                                          TextModel* model);
  // Cuts off all clients. What the model does must end soon: see TextModel.
  ~ApiServer();
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;

  const std::string& url() const { return url_; }
  size_t waiting() { return queue_->waiting(); }

 private:
  ApiServer(ApiOptions options, TextModel* model);
  void Answer(const HttpRequest& request, const HttpAnswer& answer);
  void AnswerText(bool chat, const HttpRequest& request, const HttpAnswer& answer);
  HttpResponse AnswerModels(const HttpRequest& request) const;
  absl::Status CheckCaller(const HttpRequest& request) const;
  void AnswerWaiting(TextQueue::Waiting& one);

  const ApiOptions options_;
  TextModel* const model_;
  std::string url_;
  std::atomic<uint64_t> answers_ = 0;
  const std::string run_;  // of ids, which must not come again after a restart
  std::unique_ptr<TextQueue> queue_;
  std::unique_ptr<HttpServer> http_;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_SERVE_API_SERVER_H_
