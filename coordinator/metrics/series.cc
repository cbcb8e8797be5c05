#include "coordinator/metrics/series.h"

#include <prometheus/text_serializer.h>

#include <cmath>
#include <utility>

#include "common/check.h"

namespace milepost::coordinator {

void Series::Set(Metric metric, const std::vector<std::string>& labels, double value) {
  if (std::isnan(value)) return;
  const MetricInfo& info = InfoOf(metric);
  MP_CHECK(info.kind == MetricKind::kGauge);
  prometheus::MetricFamily& family = gauges_[metric];
  family.name = std::string(info.name);
  family.help = std::string(info.help);
  family.type = prometheus::MetricType::Gauge;
  prometheus::ClientMetric& one = family.metric.emplace_back();
  one.gauge.value = value;
  const std::vector<std::string> names = LabelsOf(info);
  MP_CHECK(names.size() == labels.size());
  for (size_t i = 0; i < names.size(); ++i) one.label.push_back({names[i], labels[i]});
}

void Series::Add(std::vector<prometheus::MetricFamily> families) {
  for (prometheus::MetricFamily& family : families) counted_.push_back(std::move(family));
}

std::string Series::Text() const {
  std::vector<prometheus::MetricFamily> all = counted_;
  for (const auto& [metric, family] : gauges_) all.push_back(family);
  return prometheus::TextSerializer().Serialize(all);
}

}  // namespace milepost::coordinator
