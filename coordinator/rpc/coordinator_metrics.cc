// What a coordinator tells a scrape.
#include "coordinator/metrics/activity.h"
#include "coordinator/metrics/cluster_series.h"
#include "coordinator/metrics/names.h"
#include "coordinator/metrics/series.h"
#include "coordinator/rpc/coordinator.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/store.h"

namespace milepost::coordinator {

void Coordinator::CollectMetrics(Series* series) {
  activity_->Collect(series);
  series->Set(Metric::kStartTime, {}, absl::ToUnixMillis(started_) / 1000.0);
  absl::ReaderMutexLock lock(&mutex_);
  for (const auto& [key, count] : totals_.by_state()) {
    series->Set(Metric::kJobs,
                {key.first.empty() ? kDefaultQueue : key.first, StateLabel(key.second)},
                static_cast<double>(count));
  }
  series->Set(Metric::kJobRecordBytes, {}, static_cast<double>(totals_.bytes()));
  CollectState(state_, clock_->Now(), {}, series);
}

}  // namespace milepost::coordinator
