// The contents of one scrape: values of the metrics in metric_table.h, and their text.
//
//   Series series;
//   series.Set(Metric::kJobs, {"research", "RUNNING"}, 3);
//   std::string text = series.Text();   // Prometheus' text format 0.0.4
//
// https://prometheus.io/docs/instrumenting/exposition_formats. Gauges are formatted at once. The
// coordinator's state is locked meanwhile, and thousands of workers have tens of thousands of
// values. Not thread-safe.
#ifndef MILEPOST_COORDINATOR_METRICS_SERIES_H_
#define MILEPOST_COORDINATOR_METRICS_SERIES_H_

#include <prometheus/metric_family.h>

#include <map>
#include <string>
#include <vector>

#include "common/gauge_text.h"
#include "coordinator/metrics/metric_table.h"

namespace milepost::coordinator {

class Series {
 public:
  // Sets a value of a gauge. `labels` has a value for every label of the table, in its order. A NaN
  // is left out.
  void Set(Metric metric, const std::vector<std::string>& labels, double value);
  // Adds families that were counted elsewhere. Their metrics must not be Set.
  void Add(std::vector<prometheus::MetricFamily> families);

  std::string Text() const;

 private:
  std::map<Metric, GaugeText> gauges_;
  std::vector<prometheus::MetricFamily> counted_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_METRICS_SERIES_H_
