// What a State says of jobs, queues, workers and GPUs, as series.
//
//   CollectState(state, now, {}, &series);
//
// Pure. Takes time in proportion to the jobs that have not ended and the workers' GPUs.
#ifndef MILEPOST_COORDINATOR_METRICS_CLUSTER_SERIES_H_
#define MILEPOST_COORDINATOR_METRICS_CLUSTER_SERIES_H_

#include <cstddef>

#include "absl/time/time.h"
#include "coordinator/core/state.h"
#include "coordinator/metrics/series.h"

namespace milepost::coordinator {

// What has series of its own: a job with ranks has about thirty, a GPU about ten, a pool that jobs
// ask for one. The others are counted in milepost_series_left_out.
struct SeriesLimits {
  size_t jobs = 1000;
  size_t workers = 10'000;
  size_t gpus = 10'000;
  // Pools and device models that jobs ask for, by kind of device, beside those that workers have.
  size_t pools = 1000;
};

void CollectState(const State& state, absl::Time now, const SeriesLimits& limits, Series* series);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_METRICS_CLUSTER_SERIES_H_
