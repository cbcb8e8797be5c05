// A small HTTP server.
//
//   HttpOptions options;
//   options.sockets = std::move(sockets);   // that listen: common/http/listen.h
//   options.handler = [](const HttpRequest& request, HttpAnswer answer) {
//     answer({.body = "hello " + request.path});  // now, or later from any thread
//   };
//   MP_ASSIGN_OR_RETURN(auto server, HttpServer::Start(std::move(options)));
//
// It takes GET and HEAD and, where most_body_bytes says so, POST. Other methods get 405 and larger
// bodies 413, at once and unread. Over TLS 1.3 where there are certificates; it reads them again
// when they change. Everything is bounded: connections, those of one address, bytes of a request's
// head and body, and how long a connection may be silent. Slow readers hold up nobody, and answers
// may take long: no thread waits for a connection. libmicrohttpd speaks HTTP.
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

// Headers are empty where there are none.
struct HttpRequest {
  std::string method;  // GET, HEAD or POST
  std::string path;    // "/metrics", without the query; as it was sent but for %XX
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
  // Besides what every answer says, or instead of it.
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::shared_ptr<HttpStream> stream = nullptr;  // instead of the body
};

// Takes the answer to one request: the first counts. Copies are the same answer; when all are gone
// without one, it is 500.
class HttpAnswer {
 public:
  explicit HttpAnswer(std::function<void(HttpResponse)> take);
  void operator()(HttpResponse response) const;

 private:
  struct Once;
  std::shared_ptr<Once> once_;
};

struct HttpOptions {
  std::vector<UniqueFd> sockets;  // of TCP, that listen
  std::string tls_dir;            // common/rpc/endpoint.h; empty: plain text
  // Called by a thread of the server's, by several at once. Must not block for long, nor throw.
  // What takes long answers later.
  std::function<void(HttpRequest request, HttpAnswer answer)> handler;
  size_t most_body_bytes = 0;            // of a POST; 0: there is no POST
  unsigned connections = 256;            // at a time, of each socket
  unsigned connections_of_address = 64;  // of one client address
  absl::Duration silence = absl::Seconds(15);
  absl::Duration look_at_tls_files = absl::Seconds(10);
};

class HttpServer {
 public:
  // Answering when it returns. INTERNAL: the library refuses; and the errors of ReadTlsFolder.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(HttpOptions options);
  ~HttpServer();  // ends all connections; answers that come later go nowhere
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

}  // namespace milepost

#endif  // MILEPOST_COMMON_HTTP_HTTP_SERVER_H_
