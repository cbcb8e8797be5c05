// A worker's HTTP port: pages for monitoring and for probes.
//
//   MP_ASSIGN_OR_RETURN(auto pages, WorkerPages::Start({.listen = "127.0.0.1:7072", ...}));
//
//   /metrics   worker_series.h; for who shows the token, where there is one
//   /healthz   200 while the worker's loop gets on; 503 otherwise: start it again
//   /readyz    200 while a coordinator has taken it in as well
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

// A loop that has not turned for so long stands still.
inline constexpr absl::Duration kStandsStill = absl::Seconds(30);

struct WorkerPagesOptions {
  std::string listen;          // HOST:PORT; port 0: any free one
  std::string tls_dir;         // a server's certificate; empty: plain text, on loopback alone
  std::string token_file;      // holds what a scraper shows; empty: nothing, on loopback alone
  std::string worker_tls_dir;  // whose certificate's end is told; empty: it has none
  std::function<AgentStanding()> standing;  // must not block
};

class WorkerPages {
 public:
  // Answering when it returns. INVALID_ARGUMENT: not HOST:PORT, not loopback without TLS and a
  // token, or a token of fewer than 16 characters; UNAVAILABLE: the address cannot be had; and the
  // errors of reading the files.
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
  std::string token_sha256_;  // empty: none is asked for
  std::string address_;
  std::unique_ptr<HttpServer> server_;  // its threads use the others
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_METRICS_WORKER_PAGES_H_
