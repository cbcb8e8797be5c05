// What a worker exports for Prometheus about itself, its ranks and its GPUs.
//
//   const std::string page = WorkerMetricsText({.standing = agent->Describe(), ...});
//
// The coordinator exports the same facts about all workers, as it receives them. This page serves
// those who scrape hosts, or who have more ranks than the coordinator's page lists. The names
// differ from the coordinator's, so that no sum counts a rank twice. Pure.
#ifndef MILEPOST_WORKER_METRICS_WORKER_SERIES_H_
#define MILEPOST_WORKER_METRICS_WORKER_SERIES_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "worker/agent/agent.h"

namespace milepost::worker {

struct WorkerMetricInfo {
  absl::string_view name;
  absl::string_view labels;  // with commas between
  absl::string_view help;    // a sentence
};

// All of them are gauges.
absl::Span<const WorkerMetricInfo> AllWorkerMetrics();
// The table in docs/operate/metrics.md.
std::string WorkerMetricsAsMarkdown();

struct WorkerFacts {
  AgentStanding standing;
  absl::Time start;                           // of the process, wall time
  std::optional<absl::Time> certificate_end;  // absent: it has none
};

// The page in Prometheus' text format 0.0.4: at most about thirty series for each rank and GPU.
std::string WorkerMetricsText(const WorkerFacts& facts);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_METRICS_WORKER_SERIES_H_
