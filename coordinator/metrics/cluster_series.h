// The series of a State: its jobs, queues, workers and GPUs.
//
//   CollectState(state, now, {}, &series);
//
// Pure. The time grows with the number of jobs that have not ended, and with the workers' GPUs.
#ifndef MILEPOST_COORDINATOR_METRICS_CLUSTER_SERIES_H_
#define MILEPOST_COORDINATOR_METRICS_CLUSTER_SERIES_H_

#include <cstddef>

#include "absl/time/time.h"
#include "coordinator/core/state.h"
#include "coordinator/metrics/series.h"

namespace milepost::coordinator {

// How many things may have series of their own. A job with ranks has about thirty series, a GPU
// about ten, and a pool that jobs ask for one. milepost_series_left_out counts the others.
struct SeriesLimits {
  size_t jobs = 1000;
  size_t workers = 10'000;
  size_t gpus = 10'000;
  // Pools and device models that jobs ask for, by kind of device, beside those of workers.
  size_t pools = 1000;
};

void CollectState(const State& state, absl::Time now, const SeriesLimits& limits, Series* series);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_METRICS_CLUSTER_SERIES_H_
