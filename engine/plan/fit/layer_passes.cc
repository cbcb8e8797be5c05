#include "engine/plan/fit/layer_passes.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/spec/model_sizes.h"
#include "common/status_macros.h"
#include "engine/ops/expert_parallel/expert_parallel.h"
#include "engine/plan/estimates/links.h"
#include "engine/plan/fit/scaled_draft.h"
#include "engine/plan/planner/planner.h"

namespace milepost::plan {
namespace {

constexpr int kStages = 3;
constexpr int64_t kMicroBatches = 4;
constexpr int64_t kFewLayers = 2 * kStages;
constexpr int64_t kMoreLayers = 4 * kStages;

struct MiddleStage {
  StepCosts costs;
  size_t layers = 0;

  double PassWork() const {
    int64_t work = 0;
    for (const OpCosts& op : costs.ops) work += op.pass >= 0 ? op.work : 0;
    return static_cast<double>(work);
  }
};

absl::StatusOr<MiddleStage> DraftMiddle(const v1::JobSpec& spec, const PlanOptions& options,
                                        Planning* planning) {
  MP_ASSIGN_OR_RETURN(const StepPlan plan, DraftTraining(spec, options, planning));
  std::set<int> blocks;
  for (const PlannedOp& op : plan.train.ops) {
    if (op.op.phase == graph::Phase::kForward && op.op.block >= 0) blocks.insert(op.op.block);
  }
  MiddleStage stage = {CostsOf(plan), blocks.size()};
  for (OpCosts& op : stage.costs.ops) {
    // Whether hosts lie between expert ranks hangs on the number of stages, which is another here.
    if (ops::IsExpertExchange(op.kind)) op.wire_bytes = 0;
  }
  return stage;
}

}  // namespace

PassTimes LayerPasses::Seconds(const DeviceProfile& profile) const {
  const StageSeconds of_few = SecondsOfStage(few, profile);
  const StageSeconds of_more = SecondsOfStage(more, profile);
  PassTimes passes = {};
  for (size_t kind = 0; kind < passes.size(); ++kind) {
    passes[kind] = std::max(0.0, of_more.passes[0][kind] - of_few.passes[0][kind]) / layers;
  }
  return passes;
}

double LayerPasses::TransferSeconds(const PlanOptions& options,
                                    const DeviceProfile& profile) const {
  double activations = 0, gradients = 0;  // bytes of all micro-batches
  for (const OpCosts& op : few.ops) {
    if (op.kind != graph::OpKind::kStageSend) continue;
    (op.stream == Stream::kStageGradients ? gradients : activations) += op.wire_bytes;
  }
  return CollectiveSeconds(graph::OpKind::kStageSend,
                           std::max(activations, gradients) / kMicroBatches, options, profile);
}

absl::StatusOr<LayerPasses> DraftLayerPasses(const v1::JobSpec& spec, const RankPlace& place) {
  if (!LayersAreAlike(spec) || SizesOf(spec.model()).layers < kMoreLayers) return LayerPasses{};
  MP_ASSIGN_OR_RETURN(PlanOptions options, OptionsFromSpec(spec, place.threads));
  options.pipeline = kStages;
  options.stage = kStages / 2;
  options.accumulation = kMicroBatches;
  if (options.chunks > 1) {  // a layer takes as long in any of them
    options.schedule = PipelineSchedule::kOneForwardOneBackward;
    options.chunks = 1;
  }
  options.zero_stage = std::min(options.zero_stage, 1);
  options.shard_ranks = 0;
  MP_ASSIGN_OR_RETURN(MiddleStage few,
                      DraftMiddle(WithLayers(spec, kFewLayers), options, place.planning));
  MP_ASSIGN_OR_RETURN(MiddleStage more,
                      DraftMiddle(WithLayers(spec, kMoreLayers), options, place.planning));
  if (more.layers <= few.layers) return LayerPasses{};
  const auto layers = static_cast<double>(more.layers - few.layers);
  const double work = (more.PassWork() - few.PassWork()) / (layers * kMicroBatches);
  return LayerPasses{std::move(few.costs), std::move(more.costs), layers, work};
}

}  // namespace milepost::plan
