#include "coordinator/metrics/series.h"

#include <prometheus/text_serializer.h>

#include <cmath>
#include <utility>

#include "common/check.h"

namespace milepost::coordinator {

void Series::Set(Metric metric, const std::vector<std::string>& labels, double value) {
  if (std::isnan(value)) return;
  auto found = gauges_.find(metric);
  if (found == gauges_.end()) {
    const MetricInfo& info = InfoOf(metric);
    MP_CHECK(info.kind == MetricKind::kGauge);
    found = gauges_.emplace(metric, GaugeText(info.name, LabelsOf(info), info.help)).first;
  }
  found->second.Add(labels, value);
}

void Series::Add(std::vector<prometheus::MetricFamily> families) {
  for (prometheus::MetricFamily& family : families) counted_.push_back(std::move(family));
}

std::string Series::Text() const {
  std::string text = prometheus::TextSerializer().Serialize(counted_);
  for (const auto& [metric, gauge] : gauges_) text.append(gauge.text());
  return text;
}

}  // namespace milepost::coordinator
