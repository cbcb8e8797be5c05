// A worker's HTTP port: pages for monitoring and for probes.
//
//   MP_ASSIGN_OR_RETURN(auto pages, WorkerPages::Start({.listen = "127.0.0.1:7072", ...}));
//
//   /metrics   worker_series.h; needs the token, where one is configured
//   /healthz   200 while the worker's loop runs; 503 otherwise: restart the process
//   /readyz    200 while, in addition, a coordinator has registered the worker
//
// Thread-safe.
#ifndef MILEPOST_WORKER_METRICS_WORKER_PAGES_H_
#define MILEPOST_WORKER_METRICS_WORKER_PAGES_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/http/http_server.h"
#include "worker/agent/agent.h"

namespace milepost::worker {

// A loop that has not turned for this long counts as hung.
inline constexpr absl::Duration kStandsStill = absl::Seconds(30);

struct WorkerPagesOptions {
  std::string listen;  // HOST:PORT; port 0: any free one
  // Folder of the server's certificate. Empty: plain text, only on loopback.
  std::string tls_dir;
  std::string token_file;      // holds a scraper's token; empty: no token, only on loopback
  std::string worker_tls_dir;  // folder of the certificate whose end is exported; empty: none
  std::function<AgentStanding()> standing;  // must not block
};

class WorkerPages {
 public:
  // The server answers when this returns. INVALID_ARGUMENT: `listen` is not HOST:PORT, is not
  // loopback although TLS or the token is missing, or the token has fewer than 16 characters.
  // UNAVAILABLE: the address cannot be bound. Otherwise the errors of reading the files.
  static absl::StatusOr<std::unique_ptr<WorkerPages>> Start(WorkerPagesOptions options);

  // host:port with the port that was bound.
  const std::string& address() const { return address_; }
  HttpResponse Answer(const HttpRequest& request) const;

 private:
  explicit WorkerPages(WorkerPagesOptions options);
  absl::Status Listen();
  HttpResponse AnswerMetrics(const HttpRequest& request) const;

  const WorkerPagesOptions options_;
  const absl::Time start_;
  std::string token_sha256_;  // empty: no token is required
  std::string address_;
  std::unique_ptr<HttpServer> server_;  // its threads use the others
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_METRICS_WORKER_PAGES_H_
