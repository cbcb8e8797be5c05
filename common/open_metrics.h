// The two formats of metrics: Prometheus' text format 0.0.4 and OpenMetrics 1.0. Pages are made in
// the first. The second differs in the names of counters' families and in its end.
//
//   if (WantsOpenMetrics(request.accept)) {
//     return {.content_type = kOpenMetricsType, .body = ToOpenMetrics(text)};
//   }
//   return {.content_type = kPrometheusTextType, .body = text};
//
// https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md
// https://prometheus.io/docs/instrumenting/exposition_formats. Pure.
#ifndef MILEPOST_COMMON_OPEN_METRICS_H_
#define MILEPOST_COMMON_OPEN_METRICS_H_

#include <string>

#include "absl/strings/string_view.h"

namespace milepost {

inline constexpr char kPrometheusTextType[] = "text/plain; version=0.0.4; charset=utf-8";
inline constexpr char kOpenMetricsType[] =
    "application/openmetrics-text; version=1.0.0; charset=utf-8";

// True when an Accept header names OpenMetrics 1.0, and does not name plain text before it (RFC
// 9110, 12.5.1).
bool WantsOpenMetrics(absl::string_view accept);

// `text` is a whole page in format 0.0.4. In it only counters may have names that end in _total.
std::string ToOpenMetrics(absl::string_view text);

}  // namespace milepost

#endif  // MILEPOST_COMMON_OPEN_METRICS_H_
