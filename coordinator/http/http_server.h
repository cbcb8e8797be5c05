// A small HTTP server: it answers GET and HEAD of a few pages.
//
//   HttpOptions options;
//   options.sockets = std::move(sockets);   // that listen
//   options.handler = [](const HttpRequest& request) {
//     return HttpResponse{.body = "hello " + request.path};
//   };
//   MP_ASSIGN_OR_RETURN(auto server, HttpServer::Start(std::move(options)));
//
// Over TLS 1.3 where there are certificates; it reads them again when they change. Requests with
// other methods get 405, at once and unread. Everything is bounded: connections, those of one
// address, bytes of a request's head, and how long a connection may be silent. Slow readers hold up
// nobody: no thread waits for a connection. libmicrohttpd speaks HTTP.
//
// Thread-safe.
#ifndef MILEPOST_COORDINATOR_HTTP_HTTP_SERVER_H_
#define MILEPOST_COORDINATOR_HTTP_HTTP_SERVER_H_

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
#include "common/unique_fd.h"

namespace milepost::coordinator {

struct HttpRequest {
  std::string method;         // GET or HEAD
  std::string path;           // "/metrics", without the query
  std::string authorization;  // the header; empty: there is none
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

struct HttpOptions {
  std::vector<UniqueFd> sockets;  // of TCP, that listen
  std::string tls_dir;            // common/rpc/endpoint.h; empty: plain text
  // Called by a thread of the server's, by several at once. Must not block for long, nor throw.
  std::function<HttpResponse(const HttpRequest&)> handler;
  unsigned connections = 256;            // at a time, of each socket
  unsigned connections_of_address = 64;  // of one client address
  absl::Duration silence = absl::Seconds(15);
  absl::Duration look_at_tls_files = absl::Seconds(10);
};

class HttpServer {
 public:
  // Answering when it returns. INTERNAL: the library refuses; and the errors of ReadTlsFolder.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(HttpOptions options);
  ~HttpServer();  // ends all connections
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

 private:
  class Daemon;
  explicit HttpServer(HttpOptions options);

  absl::Status StartDaemons(const std::string& certificate, const std::string& key);
  // Until stop_: daemons with the new files take over where those have changed.
  void WatchFiles();

  const HttpOptions options_;
  std::string certificate_;  // that daemons_ have
  std::vector<std::unique_ptr<Daemon>> daemons_;
  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread watch_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_HTTP_HTTP_SERVER_H_
