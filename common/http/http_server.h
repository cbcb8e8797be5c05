// A small HTTP server.
//
//   HttpOptions options;
//   options.sockets = std::move(sockets);   // listening: common/http/listen.h
//   options.handler = [](const HttpRequest& request, HttpAnswer answer) {
//     answer({.body = "hello " + request.path});  // now, or later from any thread
//   };
//   MP_ASSIGN_OR_RETURN(auto server, HttpServer::Start(std::move(options)));
//
// It accepts GET and HEAD, and POST if most_body_bytes allows it. Other methods get 405 and larger
// bodies 413, at once and unread. With certificates it speaks TLS 1.3, and reads them again when
// they change.
//
// Everything is bounded: connections, connections of one address, the bytes of a request's head and
// body, and how long a connection may be silent. Slow readers hold up nobody. Answers may take
// long, because no thread waits for a connection. libmicrohttpd speaks HTTP.
//
// Thread-safe.
#ifndef MILEPOST_COMMON_HTTP_HTTP_SERVER_H_
#define MILEPOST_COMMON_HTTP_HTTP_SERVER_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/http/http_stream.h"
#include "common/unique_fd.h"

namespace milepost {

// A header that the request lacks is empty.
struct HttpRequest {
  std::string method;  // GET, HEAD or POST
  std::string path;    // "/metrics", without the query, with %XX decoded
  std::vector<std::pair<std::string, std::string>> query;
  std::string body;
  std::string authorization;
  std::string host;
  std::string origin;
  std::string cookie;
  std::string content_type;
  std::string accept;
  std::string fetch_site;  // Sec-Fetch-Site
  std::string if_none_match;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body = {};
  // Headers added to the usual ones, or replacing them.
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::shared_ptr<HttpStream> stream = nullptr;  // instead of the body
};

// Takes the answer to one request. Only the first answer counts. Copies stand for the same answer.
// When all copies are gone without an answer, the answer is 500.
class HttpAnswer {
 public:
  // `left`: whether the client has left; nullptr: it is not known.
  explicit HttpAnswer(std::function<void(HttpResponse)> take, std::function<bool()> left = nullptr);
  void operator()(HttpResponse response) const;
  // True when the client is known to have closed the connection before there was an answer. Does
  // not block.
  bool ClientLeft() const;

 private:
  struct Once;
  std::shared_ptr<Once> once_;
};

struct HttpOptions {
  std::vector<UniqueFd> sockets;  // listening TCP sockets
  std::string tls_dir;            // common/rpc/endpoint.h; empty: plain text
  // Called on threads of the server, also on several at once. Must not block for long, and must not
  // throw. Work that takes long answers later.
  std::function<void(HttpRequest request, HttpAnswer answer)> handler;
  // What is answered where the server itself refuses a request (405, 411, 413, ...); by default the
  // reason as plain text. As `handler`, and without a stream.
  std::function<HttpResponse(int status, const std::string& why)> refusal;
  size_t most_body_bytes = 0;            // the limit for a POST; 0: POST is refused
  unsigned connections = 256;            // at a time, for each socket
  unsigned connections_of_address = 64;  // for one client address
  absl::Duration silence = absl::Seconds(15);
  absl::Duration look_at_tls_files = absl::Seconds(10);
};

class HttpServer {
 public:
  // The server answers when this returns. INTERNAL: the library refuses. Otherwise the errors of
  // ReadTlsFolder.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(HttpOptions options);
  ~HttpServer();  // ends all connections; later answers are dropped
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

 private:
  class Daemon;
  explicit HttpServer(HttpOptions options);

  absl::Status StartDaemons(const std::string& certificate, const std::string& key);
  // Runs until stop_. When the files have changed, daemons with the new files take over.
  void WatchFiles();

  const HttpOptions options_;
  std::string certificate_;  // the one that daemons_ have
  std::vector<std::unique_ptr<Daemon>> daemons_;
  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread watch_;
};

}  // namespace milepost

#endif  // MILEPOST_COMMON_HTTP_HTTP_SERVER_H_
