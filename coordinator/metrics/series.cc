#include "coordinator/metrics/series.h"

#include <prometheus/text_serializer.h>

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/check.h"

namespace milepost::coordinator {
namespace {

void AppendEscaped(absl::string_view value, std::string* text) {
  for (const char c : value) {
    if (c == '\\' || c == '"') text->push_back('\\');
    if (c == '\n') {
      text->append("\\n");
    } else {
      text->push_back(c);
    }
  }
}

void AppendNumber(double value, std::string* text) {
  if (std::isinf(value)) {
    text->append(value > 0 ? "+Inf" : "-Inf");
    return;
  }
  std::array<char, 32> digits;
  const std::to_chars_result end =
      std::to_chars(digits.data(), digits.data() + digits.size(), value);
  text->append(digits.data(), end.ptr);
}

}  // namespace

void Series::Set(Metric metric, const std::vector<std::string>& labels, double value) {
  if (std::isnan(value)) return;
  const auto [found, is_new] = gauges_.try_emplace(metric);
  Gauge& gauge = found->second;
  if (is_new) {
    const MetricInfo& info = InfoOf(metric);
    MP_CHECK(info.kind == MetricKind::kGauge);
    gauge = {.name = std::string(info.name), .labels = LabelsOf(info), .text = ""};
    absl::StrAppend(&gauge.text, "# HELP ", info.name, " ", info.help, "\n# TYPE ", info.name,
                    " gauge\n");
  }
  MP_CHECK(gauge.labels.size() == labels.size());
  gauge.text.append(gauge.name);
  for (size_t i = 0; i < labels.size(); ++i) {
    absl::StrAppend(&gauge.text, i == 0 ? "{" : ",", gauge.labels[i], "=\"");
    AppendEscaped(labels[i], &gauge.text);
    gauge.text.push_back('"');
  }
  gauge.text.append(labels.empty() ? " " : "} ");
  AppendNumber(value, &gauge.text);
  gauge.text.push_back('\n');
}

void Series::Add(std::vector<prometheus::MetricFamily> families) {
  for (prometheus::MetricFamily& family : families) counted_.push_back(std::move(family));
}

std::string Series::Text() const {
  std::string text = prometheus::TextSerializer().Serialize(counted_);
  for (const auto& [metric, gauge] : gauges_) text.append(gauge.text);
  return text;
}

}  // namespace milepost::coordinator
