// What `milepost job curves` shows: tables and plots of the values that jobs have reported. Pure
// and thread-safe.
#ifndef MILEPOST_CLIENT_CLI_CURVE_VIEW_H_
#define MILEPOST_CLIENT_CLI_CURVE_VIEW_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "milepost/v1/job.pb.h"

namespace milepost::client {

// The curves with the given names, in the order of the names. NOT_FOUND: `job` has no curve of some
// name; the message lists the curves that it has.
absl::StatusOr<v1::JobCurves> Chosen(const v1::JobCurves& curves, absl::string_view job,
                                     const std::vector<std::string>& names);
// The curves that people look at first: losses, learning rate, gradient norm, speed.
v1::JobCurves Foremost(const v1::JobCurves& curves);

// One column for each curve, one row for each point of the longest curve. The other columns show
// their newest value since the row before, or "-".
std::string CurveTable(const v1::JobCurves& curves);

// A curve's value, formatted for its unit: "2.3140", "3.00e-04", "31.2k", "NaN".
std::string CurveValueText(absl::string_view curve, double value);

// One curve of one job. Curves of several jobs can share a plot.
struct PlottedCurve {
  std::string job;  // "jobs/7"
  v1::Curve curve;
};

struct PlotSize {
  size_t columns = 80;  // of everything; at least 40
  size_t rows = 16;     // of the plot itself; at least 4
  bool unicode = true;  // two by four dots to a character; else plain ASCII
};

// Plots means over steps. A single curve also shows its range from minimum to maximum; several
// curves are told apart by letters. Lines have at most `size.columns` columns. Values that are not
// finite are named below.
std::string CurvePlot(absl::string_view name, const std::vector<PlottedCurve>& curves,
                      const PlotSize& size);

// True when a terminal shows UTF-8, judged by LC_ALL, LC_CTYPE and LANG ("" where not set).
bool ShowsUnicode(absl::string_view lc_all, absl::string_view lc_ctype, absl::string_view lang);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_CURVE_VIEW_H_
