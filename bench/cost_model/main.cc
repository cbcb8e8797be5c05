// The expected times of plans beside what others have published of training runs, and beside what
// was measured here. Prints a line for each run and the median error; nothing is measured.
//
//   build/dev/bench/cost_model --json bench/results/cost_model.json
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "bench/cost_model/published.h"
#include "common/spec/sizes.h"
#include "engine/plan/estimates/estimate.h"
#include "engine/plan/planner/planner.h"
#include "nlohmann/json.hpp"

namespace milepost {
namespace {

using Json = nlohmann::ordered_json;

// Of a step; 0: it cannot be planned.
double StepSeconds(const PublishedRun& run) {
  const v1::JobSpec spec = SpecOf(run);
  const auto options = plan::OptionsFromSpec(spec, 1);
  if (!options.ok()) return 0;
  const auto plan = plan::DraftTraining(spec, *options);
  if (!plan.ok()) {
    std::fprintf(stderr, "%s %s: %s\n", run.system, run.shape->name,
                 std::string(plan.status().message()).c_str());
    return 0;
  }
  plan::DeviceProfile profile = plan::OnHosts(*plan::BuiltInProfile(run.device), 0, run.network);
  profile.memory_bandwidth *= run.memory_part;
  return plan::EstimateStep(*plan, profile).seconds;
}

// Tokens per second of a rank; 0: it cannot be planned. A pipeline takes as much longer for each
// micro-batch beyond those that a plan may have.
double Expected(PublishedRun run) {
  const auto tokens = static_cast<double>(run.micro * run.accumulation * run.sequence) /
                      (run.tensor * run.pipeline * run.context);
  const int64_t further = run.accumulation - kMaxMicroBatches;
  if (run.pipeline == 1 || further <= 0) {
    const double seconds = StepSeconds(run);
    return seconds > 0 ? tokens / seconds : 0;
  }
  run.accumulation = kMaxMicroBatches;
  const double most = StepSeconds(run);
  run.accumulation = kMaxMicroBatches / 2;
  const double half = StepSeconds(run);
  if (most <= 0 || half <= 0) return 0;
  return tokens / (most + static_cast<double>(further) * (most - half) / run.accumulation);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// Appends the runs to `json`; false: one of them cannot be planned.
bool Compare(const char* title, absl::Span<const PublishedRun> runs, Json* json) {
  std::printf("%s\n%-16s %-5s %-15s %6s %5s %3s %5s %5s %-9s %6s %9s %9s %7s\n", title, "system",
              "gpu", "model", "tokens", "ranks", "tp", "stage", "group", "recompute", "batch",
              "theirs", "expected", "error");
  std::vector<double> errors;
  Json& rows = (*json)["rows"] = Json::array();
  for (const PublishedRun& run : runs) {
    const double expected = Expected(run);
    if (expected <= 0) return false;
    const double error = expected / run.tokens_per_second - 1;
    errors.push_back(std::abs(error));
    const std::string recompute = v1::Recompute_Name(run.recompute).substr(10);
    const std::string precision = v1::Precision_Name(run.precision).substr(10);
    std::printf("%-16s %-5s %-15s %6ld %5d %3d %5d %5d %-9s %3ldx%-2ld %9.0f %9.0f %+6.1f%% %s\n",
                run.system, run.device, run.shape->name, run.sequence, run.ranks, run.tensor,
                run.stage, run.group, recompute.c_str(), run.micro, run.accumulation,
                run.tokens_per_second, expected, 100 * error,
                run.precision == v1::PRECISION_FP8 ? "fp8" : "");
    rows.push_back({{"system", run.system},
                    {"source", run.source},
                    {"device", run.device},
                    {"network_gigabits", run.network},
                    {"model", run.shape->name},
                    {"sequence", run.sequence},
                    {"ranks", run.ranks},
                    {"tensor", run.tensor},
                    {"pipeline", run.pipeline},
                    {"chunks", run.chunks},
                    {"stage", run.stage},
                    {"group", run.group},
                    {"recompute", recompute},
                    {"precision", precision},
                    {"micro", run.micro},
                    {"accumulation", run.accumulation},
                    {"tokens_per_second_per_rank", run.tokens_per_second},
                    {"expected", expected},
                    {"error", error},
                    {"note", run.note}});
  }
  (*json)["median_error"] = Median(errors);
  std::printf("median error %.1f%% of %zu runs\n\n", 100 * Median(errors), errors.size());
  return true;
}

int Main(int argc, char** argv) {
  CLI::App app{"Expected times beside published ones"};
  std::string path;
  app.add_option("--json", path, "also write the rows to this file");
  CLI11_PARSE(app, argc, argv);
  Json json = Json::object();
  if (!Compare("published", PublishedRuns(), &json["published"]) ||
      !Compare("Milepost, one GPU", RunsHere(), &json["here"])) {
    return 1;
  }
  if (!path.empty() && !(std::ofstream(path) << json.dump(1) << "\n")) return 1;
  return 0;
}

}  // namespace
}  // namespace milepost

int main(int argc, char** argv) { return milepost::Main(argc, argv); }
