#include "engine/plan/fit/stage_drafts.h"

#include <map>
#include <utility>

#include "common/status_macros.h"
#include "engine/plan/fit/required_bytes.h"
#include "engine/plan/passes/memory_pass.h"
#include "engine/plan/pipeline/schedule.h"
#include "engine/plan/planner/planner.h"

namespace milepost::plan {
namespace {

// By stage: the one that stands for it.
absl::StatusOr<std::vector<int>> DraftedStages(const v1::JobSpec& spec,
                                               const PlanOptions& options) {
  std::vector<int> drafted(static_cast<size_t>(options.pipeline));
  const int last = options.pipeline - 1;
  // Such groups may treat layers differently, whatever those compute.
  if (!spec.train().optimizer().groups().empty()) {
    for (int stage = 0; stage <= last; ++stage) drafted[stage] = stage;
    return drafted;
  }
  MP_ASSIGN_OR_RETURN(const std::vector<std::vector<double>> costs, CostsOfRuns(spec, options));
  const std::vector<int> in_flight = MostInFlight(ShapeOf(options));
  using CostsOfStage = std::vector<std::vector<double>>;  // by chunk
  const auto key = [&](int stage) {
    CostsOfStage own;
    for (int chunk = 0; chunk < options.chunks; ++chunk) {
      own.push_back(costs[chunk * options.pipeline + stage]);
    }
    return std::pair(stage == 0 ? 0 : stage == last ? 2 : 1, std::move(own));
  };
  std::map<std::pair<int, CostsOfStage>, int> most;
  for (int stage = 0; stage <= last; ++stage) {
    const auto [found, added] = most.try_emplace(key(stage), stage);
    if (!added && in_flight[stage] > in_flight[found->second]) found->second = stage;
  }
  for (int stage = 0; stage <= last; ++stage) drafted[stage] = most.at(key(stage));
  return drafted;
}

}  // namespace

std::vector<StageSeconds> PipelineDraft::Seconds(const DeviceProfile& profile) const {
  std::vector<StageSeconds> drafted;
  drafted.reserve(costs.size());
  for (const StepCosts& step : costs) drafted.push_back(SecondsOfStage(step, profile));
  std::vector<StageSeconds> seconds;
  seconds.reserve(like.size());
  for (const size_t i : like) seconds.push_back(drafted[i]);
  return seconds;
}

absl::StatusOr<PipelineDraft> DraftPipeline(const v1::JobSpec& spec, PlanOptions options,
                                            Planning* planning, int64_t most_bytes) {
  MP_ASSIGN_OR_RETURN(const std::vector<int> drafted, DraftedStages(spec, options));
  PipelineDraft pipeline = {.bytes = -1};
  std::map<int, size_t> index;
  for (const int stage : drafted) {
    const auto [found, added] = index.try_emplace(stage, pipeline.costs.size());
    pipeline.like.push_back(found->second);
    if (!added) continue;
    options.stage = stage;
    MP_ASSIGN_OR_RETURN(const StepPlan plan, DraftTraining(spec, options, planning));
    pipeline.costs.push_back(CostsOf(plan));
    const bool host = options.device == DeviceKind::kCpu;
    const int64_t bytes = RequiredBytes(plan, LeastBytes(plan), host);
    if (bytes <= pipeline.bytes) continue;
    pipeline.bytes = bytes;
    pipeline.host_bytes = HostBytes(plan);
    pipeline.largest = stage;
    if (bytes <= most_bytes) continue;
    pipeline.like.clear();
    break;
  }
  return pipeline;
}

absl::StatusOr<PlanOptions> AtLargestStage(const v1::JobSpec& spec, PlanOptions options,
                                           Planning* planning) {
  if (options.pipeline == 1) return options;
  MP_ASSIGN_OR_RETURN(const PipelineDraft draft, DraftPipeline(spec, options, planning));
  options.stage = draft.largest;
  return options;
}

}  // namespace milepost::plan
