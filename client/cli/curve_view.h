// What `milepost job curves` shows: tables and plots of what jobs have reported. Pure and
// thread-safe.
#ifndef MILEPOST_CLIENT_CLI_CURVE_VIEW_H_
#define MILEPOST_CLIENT_CLI_CURVE_VIEW_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "milepost/v1/job.pb.h"

namespace milepost::client {

// Of those, the ones with these names, in the order of the names. NOT_FOUND, naming what `job` has,
// for one that it has not.
absl::StatusOr<v1::JobCurves> Chosen(const v1::JobCurves& curves, absl::string_view job,
                                     const std::vector<std::string>& names);
// What people look at first: losses, learning rate, gradient norm, speed.
v1::JobCurves Foremost(const v1::JobCurves& curves);

// A column for each curve, a row for each point of the one that has the most; the others' newest
// values since the row before. "-" where there is none.
std::string CurveTable(const v1::JobCurves& curves);

// A value of a curve, as its unit wants it: "2.3140", "3.00e-04", "31.2k", "NaN".
std::string CurveValueText(absl::string_view curve, double value);

// One curve of one job; several jobs' come in one plot.
struct PlottedCurve {
  std::string job;  // "jobs/7"
  v1::Curve curve;
};

struct PlotSize {
  size_t columns = 80;  // of the whole; at least 40
  size_t rows = 16;     // of the plot itself, at least 4
  bool unicode = true;  // dots of two by four to a character; else plain ASCII
};

// Means over steps, and from least to most where one curve is alone; several have letters. Lines of
// at most `size.columns` columns. What was not finite is told below.
std::string CurvePlot(absl::string_view name, const std::vector<PlottedCurve>& curves,
                      const PlotSize& size);

// Whether a terminal shows UTF-8, by the values of LC_ALL, LC_CTYPE and LANG ("" where not set).
bool ShowsUnicode(absl::string_view lc_all, absl::string_view lc_ctype, absl::string_view lang);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_CURVE_VIEW_H_
