// A gauge and its samples in Prometheus' text format 0.0.4.
//
//   GaugeText gauge("milepost_job_step", {"job_id"}, "Steps done.");
//   gauge.Add({"7"}, 1200);
//   page += gauge.text();
//
// https://prometheus.io/docs/instrumenting/exposition_formats. Not thread-safe.
#ifndef MILEPOST_COMMON_GAUGE_TEXT_H_
#define MILEPOST_COMMON_GAUGE_TEXT_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace milepost {

class GaugeText {
 public:
  // `labels` are the labels' names. `help` must not have a line end.
  GaugeText(absl::string_view name, std::vector<std::string> labels, absl::string_view help);

  // `values` has the values of all labels, in order. A sample whose value is NaN is left out.
  void Add(const std::vector<std::string>& values, double value);

  const std::string& text() const { return text_; }

 private:
  std::string name_;
  std::vector<std::string> labels_;
  std::string text_;
};

}  // namespace milepost

#endif  // MILEPOST_COMMON_GAUGE_TEXT_H_
