// What one scrape tells: values of the metrics of metric_table.h, and their text.
//
//   Series series;
//   series.Set(Metric::kJobs, {"research", "RUNNING"}, 3);
//   std::string text = series.Text();   // Prometheus' text format 0.0.4
//
// https://prometheus.io/docs/instrumenting/exposition_formats. Gauges are written as text at once:
// the coordinator's state is held still for as long as that takes, and thousands of workers have
// tens of thousands of values. Not thread-safe.
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
  // A value of a gauge. `labels` as the table lists them, all of them. A value that is no number is
  // left out.
  void Set(Metric metric, const std::vector<std::string>& labels, double value);
  // What was counted elsewhere: whole families, of metrics that are not Set.
  void Add(std::vector<prometheus::MetricFamily> families);

  std::string Text() const;

 private:
  std::map<Metric, GaugeText> gauges_;
  std::vector<prometheus::MetricFamily> counted_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_METRICS_SERIES_H_
