// Counters and histograms of what a coordinator has done since it began.
//
//   activity.JobChanged(before, after);        // for every stored decision
//   activity.Called("JobService/GetJob", absl::StatusCode::kOk, absl::Milliseconds(2));
//   activity.Collect(&series);
//
// Thread-safe. Never blocks for longer than a look-up. Values begin anew with the process, as
// Prometheus expects of counters.
#ifndef MILEPOST_COORDINATOR_METRICS_ACTIVITY_H_
#define MILEPOST_COORDINATOR_METRICS_ACTIVITY_H_

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/metrics/series.h"
#include "milepost/v1/store.pb.h"

namespace milepost::coordinator {

class Activity {
 public:
  Activity();
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;

  // `before`: nullptr for a new job.
  void JobChanged(const v1::JobRecord* before, const v1::JobRecord& after);

  void Decided(absl::Duration took);
  void Scheduled(absl::Duration took);
  void Wrote(absl::Duration took, bool stored);

  // `method` must be one of the service's few methods, such as "JobService/GetJob".
  void Called(absl::string_view method, absl::StatusCode code, absl::Duration took);

  void Collect(Series* series) const;

 private:
  using Counters = prometheus::Family<prometheus::Counter>;
  using Histograms = prometheus::Family<prometheus::Histogram>;

  Counters& AddCounters(Metric metric);
  Histograms& AddHistograms(Metric metric);

  prometheus::Registry registry_;  // owns the families
  Histograms& job_waits_;
  Counters& submitted_;
  Counters& ended_;
  Counters& failed_;
  Counters& preempted_;
  Counters& calls_;
  Histograms& call_seconds_;
  prometheus::Counter& started_;
  prometheus::Counter& write_failures_;
  prometheus::Histogram& decisions_;
  prometheus::Histogram& passes_;
  prometheus::Histogram& writes_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_METRICS_ACTIVITY_H_
