// milepost job curves
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/curve_view.h"
#include "client/cli/job_arguments.h"
#include "client/cli/output.h"
#include "common/exit_codes.h"
#include "common/status_macros.h"

namespace milepost::client {
namespace {

constexpr int kTableRows = 20;
constexpr size_t kWidestPlot = 160;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

PlotSize SizeOfPlot() {
  PlotSize size;
  winsize terminal{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &terminal) == 0 && terminal.ws_col > 0) {
    size.columns = std::min<size_t>(terminal.ws_col - 1, kWidestPlot);
  }
  size.unicode = ShowsUnicode(Environment("LC_ALL"), Environment("LC_CTYPE"), Environment("LANG"));
  return size;
}

struct CurvesOfJob {
  std::string job;
  v1::JobCurves curves;
};

absl::StatusOr<std::vector<CurvesOfJob>> FetchCurves(const GlobalOptions& global,
                                                     const Access& access,
                                                     const CurvesOptions& options, int points) {
  std::vector<CurvesOfJob> all;
  for (const std::string& typed : options.jobs) {
    CurvesOfJob& one = all.emplace_back();
    MP_ASSIGN_OR_RETURN(one.job, ResolveJob(access.jobs(), typed));
    MP_ASSIGN_OR_RETURN(one.curves, access.jobs().Curves(one.job, points));
    if (one.curves.curves().empty()) {
      Note(absl::StrCat(one.job, " has reported nothing yet"));
    } else if (!options.curves.empty()) {
      MP_ASSIGN_OR_RETURN(one.curves, Chosen(one.curves, one.job, options.curves));
    } else if (global.output == OutputFormat::kTable) {
      one.curves = Foremost(one.curves);
    }
  }
  return all;
}

// A plot for each curve that any of the jobs has.
void PrintPlots(const std::vector<CurvesOfJob>& all, const std::vector<std::string>& names) {
  const PlotSize size = SizeOfPlot();
  bool first = true;
  for (const std::string& name : names) {
    std::vector<PlottedCurve> plotted;
    for (const CurvesOfJob& one : all) {
      for (const v1::Curve& curve : one.curves.curves()) {
        if (curve.name() == name) plotted.push_back({one.job, curve});
      }
    }
    if (plotted.empty()) continue;
    Print(absl::StrCat(first ? "" : "\n", CurvePlot(name, plotted, size)));
    first = false;
  }
}

void PrintTables(const std::vector<CurvesOfJob>& all) {
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string title =
        all.size() == 1 ? "" : absl::StrCat(i == 0 ? "" : "\n", all[i].job, "\n");
    Print(absl::StrCat(title, CurveTable(all[i].curves)));
  }
}

}  // namespace

int JobCurvesCommand(const GlobalOptions& global, const CurvesOptions& options) {
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  const bool whole = global.output == OutputFormat::kJson || global.output == OutputFormat::kYaml;
  // A plot has two dots to a column.
  const int points = whole          ? 0
                     : options.plot ? 2 * static_cast<int>(SizeOfPlot().columns)
                                    : kTableRows;
  const auto all = FetchCurves(global, *access, options, options.points.value_or(points));
  if (!all.ok()) return Fail(all.status());
  if (whole) {
    for (const CurvesOfJob& one : *all) Print(RenderMessage(one.curves, global.output));
  } else if (options.plot) {
    const std::vector<std::string> losses = {"train_loss", "validation_loss"};
    PrintPlots(*all, options.curves.empty() ? losses : options.curves);
  } else {
    PrintTables(*all);
  }
  return kExitOk;
}

}  // namespace milepost::client
