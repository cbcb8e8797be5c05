// What the coordinator's HTTP port answers: /metrics for Prometheus, /healthz for probes.
//
//   HttpPages pages(coordinator, gate, {.tls_dir = "/etc/milepost/tls"});
//   HttpResponse response = pages.Answer({.method = "GET", .path = "/healthz"});
//
// With TLS /metrics is for tokens that may view every project. /healthz tells nothing but that the
// coordinator serves, and is for everybody. Thread-safe. What many scrape within two seconds is
// made once.
#ifndef MILEPOST_COORDINATOR_RPC_HTTP_PAGES_H_
#define MILEPOST_COORDINATOR_RPC_HTTP_PAGES_H_

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/http/http_server.h"

namespace milepost::coordinator {

class Coordinator;
class Gate;

struct HttpPagesOptions {
  std::string tls_dir;  // of the coordinator's; empty: none
};

class HttpPages {
 public:
  // Both outlive it.
  HttpPages(Coordinator* coordinator, Gate* gate, HttpPagesOptions options);

  HttpResponse Answer(const HttpRequest& request);

 private:
  HttpResponse AnswerMetrics(const HttpRequest& request);
  HttpResponse AnswerHealth() const;
  std::string MakeText() const;

  Coordinator* const coordinator_;
  Gate* const gate_;
  const HttpPagesOptions options_;
  absl::Mutex mutex_;
  std::string text_ ABSL_GUARDED_BY(mutex_);
  // text_ as OpenMetrics, once somebody asked for it.
  std::string open_text_ ABSL_GUARDED_BY(mutex_);
  absl::Time made_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // by SteadyNow
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_HTTP_PAGES_H_
