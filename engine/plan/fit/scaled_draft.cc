#include "engine/plan/fit/scaled_draft.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/round_up.h"
#include "common/spec/model_sizes.h"
#include "common/spec/sizes.h"
#include "common/status_macros.h"
#include "engine/ops/expert_parallel/expert_parallel.h"
#include "engine/plan/fit/required_bytes.h"
#include "engine/plan/passes/memory_pass.h"
#include "engine/plan/planner/planner.h"
#include "engine/plan/planning.h"

namespace milepost::plan {

v1::JobSpec WithLayers(v1::JobSpec spec, int64_t layers) {
  v1::ModelSpec* model = spec.mutable_model();
  if (model->has_gpt2()) model->mutable_gpt2()->set_layers(layers);
  if (model->has_llama()) model->mutable_llama()->set_layers(layers);
  if (model->has_bert()) model->mutable_bert()->set_layers(layers);
  if (model->has_vit()) model->mutable_vit()->set_layers(layers);
  return spec;
}

bool LayersAreAlike(const v1::JobSpec& spec) {
  return spec.train().optimizer().groups().empty() &&
         spec.train().recompute() != v1::RECOMPUTE_BUDGET &&
         spec.model().llama().window().full_every() <= 1;
}

namespace {

using graph::OpKind;

// The first layers of a backward and the last ones of a forward are not like the others.
constexpr int64_t kFewLayers = 4;
constexpr int64_t kMoreLayers = 6;

// Layers whose place in the model makes no difference, or a difference that comes again.
struct Lengths {
  int64_t few = 0;
  int64_t more = 0;
  double times = 0;
};

Lengths LengthsFor(const v1::JobSpec& spec) {
  const int64_t all = SizesOf(spec.model()).layers;
  const int64_t period = std::max<int64_t>(1, spec.model().llama().window().full_every());
  const int64_t ahead = std::max(0, spec.train().zero().prefetch() - 1);
  Lengths lengths = {.few = all, .more = all};
  const bool alike =
      spec.train().optimizer().groups().empty() && spec.train().recompute() != v1::RECOMPUTE_BUDGET;
  const int64_t few = RoundUp(kFewLayers + ahead, period) + all % period;
  const int64_t more = few + RoundUp(kMoreLayers - kFewLayers, period);
  if (!alike || all <= more) return lengths;
  lengths = {.few = few, .more = more};
  lengths.times = static_cast<double>(all - more) / static_cast<double>(more - few);
  return lengths;
}

// Of one rank, as if nothing were sharded.
void AddGroup(const FlatGroup& group, bool gradients_last, ScaledDraft* draft) {
  const auto elements = static_cast<double>(group.padded_elements);
  draft->parameter_bytes += elements * static_cast<double>(ByteSize(group.parameter_dtype));
  if (!group.frozen) {
    draft->trained_elements += elements;
    if (group.of_experts) draft->expert_elements += elements;
    if (gradients_last) draft->gradient_bytes += 4 * elements;
  }
  for (const GroupState& state : StatesOf(group)) {
    if (state.buffer == kNoBuffer) continue;
    draft->optimizer_bytes += elements / static_cast<double>(state.elements_per_item) *
                              static_cast<double>(ByteSize(state.dtype));
  }
}

// Queries, keys, values and what is made of them, in a micro-batch's forward.
double AttentionElements(const StepPlan& plan) {
  double elements = 0;
  for (const PlannedOp& planned : plan.train.ops) {
    const graph::Op& op = planned.op;
    if (op.kind != OpKind::kAttention || op.phase != graph::Phase::kForward) continue;
    const graph::Shape& made = plan.train.graph.values[op.outputs[0].value].shape;
    const double keys =
        static_cast<double>(op.attributes.kv_heads) / static_cast<double>(op.attributes.heads);
    elements += static_cast<double>(made[0] * made[1]) * (2 + 2 * keys);
  }
  return elements;
}

absl::StatusOr<ScaledDraft> DraftOne(const v1::JobSpec& spec, const RankPlace& place) {
  MP_ASSIGN_OR_RETURN(const PlanOptions options, OptionsFromSpec(spec, place.threads));
  MP_ASSIGN_OR_RETURN(const StepPlan plan, DraftTraining(spec, options, place.planning));
  ScaledDraft draft;
  draft.bytes = RequiredBytes(plan, LeastBytes(plan), place.host_memory);
  draft.host_bytes = HostBytes(plan);
  for (const FlatGroup& group : plan.groups) AddGroup(group, options.accumulation > 1, &draft);
  draft.activation_bytes = static_cast<double>(PeakActivationBytes(plan));
  for (const PlannedOp& op : plan.train.ops) {
    const graph::Phase phase = op.op.phase;
    const bool counts = phase == graph::Phase::kForward || phase == graph::Phase::kBackward;
    const bool rows = ops::IsRowsExchange(op.op.kind) && phase == graph::Phase::kForward;
    if (rows) draft.expert_row_bytes += op.wire_bytes;
    if (counts) draft.layer_work += static_cast<double>(WorkOf(op.op));
  }
  draft.attention_elements = AttentionElements(plan);
  draft.more = CostsOf(plan);
  return draft;
}

template <typename Number>
Number Extended(Number few, Number more, double times) {
  return more + static_cast<Number>(times * static_cast<double>(more - few));
}

template <typename Runs>
double SumOf(const StepCosts& step, const Runs& runs, const DeviceProfile& profile) {
  StepCosts part = {.options = step.options};
  part.options.accumulation = part.options.side_by_side = 1;
  for (const OpCosts& op : step.ops) {
    if (op.when != When::kEveryMicroStep || !runs(op)) continue;
    part.ops.push_back(op);
    part.ops.back().wait_for.clear();
  }
  return part.ops.empty() ? 0 : EstimateStep(part, profile).seconds;
}

// With two micro-batches more than a stage ever keeps, so that the first and the last passes are
// among others as they are in a longer step. Where parameters are gathered, passes that share
// gathers with the one before take less time than others: forwards behind a backward less than the
// first ones, of which there are up to as many as stages and which therefore must be the fewer. In
// zero-bubble and interleaved steps passes of all kinds, or chunks, follow each other in no such
// order: only all of them tell. The first stage of an interleaved pipeline keeps less than two
// rounds of its forwards; whole rounds are alike.
int64_t DraftedMicroBatches(const PlanOptions& options) {
  const int64_t stages = options.pipeline;
  const bool plain = options.schedule == PipelineSchedule::kOneForwardOneBackward;
  if (options.ShardsParameters()) {
    return plain ? std::min(options.accumulation, 2 * stages + 1) : options.accumulation;
  }
  if (options.schedule == PipelineSchedule::kInterleaved) {
    return std::min(options.accumulation, 3 * stages + options.accumulation % stages);
  }
  return std::min(options.accumulation, stages + 3);
}

absl::StatusOr<ScaledDraft> DraftStages(const v1::JobSpec& spec, const RankPlace& place) {
  MP_ASSIGN_OR_RETURN(PlanOptions options, OptionsFromSpec(spec, place.threads));
  ScaledDraft draft = {.shape = ShapeOf(options)};
  options.accumulation = DraftedMicroBatches(options);
  draft.drafted = static_cast<int>(options.accumulation);
  const int64_t most =
      place.memory_bytes > 0 ? place.memory_bytes : std::numeric_limits<int64_t>::max();
  MP_ASSIGN_OR_RETURN(draft.stages, DraftPipeline(spec, options, place.planning, most));
  int64_t most_work = 0;
  for (const StepCosts& stage : draft.stages.costs) {
    int64_t work = 0;
    for (const OpCosts& op : stage.ops) work += op.work;
    most_work = std::max(most_work, work);
  }
  const double all = static_cast<double>(most_work) * draft.shape.micro_batches / draft.drafted;
  if (all > static_cast<double>(kLimitsOfRequest.ops)) {
    return absl::InvalidArgumentError(
        absl::StrCat("resources.mesh.pipeline: a stage's step has more than ", kLimitsOfRequest.ops,
                     " operations with ", draft.shape.micro_batches, " micro-batches"));
  }
  draft.bytes = draft.stages.bytes;
  draft.host_bytes = draft.stages.host_bytes;
  return draft;
}

}  // namespace

double ScaledDraft::Seconds(const DeviceProfile& profile) const {
  if (shape.stages > 1) return PipelineSeconds(shape, stages.Seconds(profile));
  const double all = EstimateStep(more, profile).seconds;
  if (times == 0) return all;
  return std::max(0.0, Extended(EstimateStep(few, profile).seconds, all, times));
}

double ScaledDraft::MicroStepSeconds(const DeviceProfile& profile) const {
  const auto computes = [](const OpCosts& op) { return op.stream == Stream::kCompute; };
  return Extended(SumOf(few, computes, profile), SumOf(more, computes, profile), times);
}

double ScaledDraft::TensorSeconds(const DeviceProfile& profile) const {
  const auto sums = [](const OpCosts& op) {
    return op.kind == OpKind::kTensorReduce || op.kind == OpKind::kTensorScatter ||
           op.kind == OpKind::kTensorGather;
  };
  return Extended(SumOf(few, sums, profile), SumOf(more, sums, profile), times);
}

absl::StatusOr<ScaledDraft> DraftScaled(const v1::JobSpec& spec, const RankPlace& place) {
  if (PipelineStages(spec.resources()) > 1) return DraftStages(spec, place);
  const Lengths lengths = LengthsFor(spec);
  const bool whole = lengths.times == 0;
  MP_ASSIGN_OR_RETURN(ScaledDraft draft,
                      DraftOne(whole ? spec : WithLayers(spec, lengths.more), place));
  if (whole) {
    draft.few = draft.more;
    draft.layer_work = 0;
    return draft;
  }
  MP_ASSIGN_OR_RETURN(ScaledDraft least, DraftOne(WithLayers(spec, lengths.few), place));
  const double times = draft.times = lengths.times;
  const double layers = static_cast<double>(SizesOf(spec.model()).layers) /
                        static_cast<double>(lengths.more - lengths.few);
  draft.layer_bytes = layers * (draft.activation_bytes - least.activation_bytes);
  draft.layer_work = layers * (draft.layer_work - least.layer_work);
  draft.layer_elements = layers * (draft.trained_elements - least.trained_elements);
  draft.bytes = Extended(least.bytes, draft.bytes, times);
  draft.host_bytes = Extended(least.host_bytes, draft.host_bytes, times);
  for (double ScaledDraft::*const part :
       {&ScaledDraft::trained_elements, &ScaledDraft::expert_elements,
        &ScaledDraft::parameter_bytes, &ScaledDraft::gradient_bytes, &ScaledDraft::optimizer_bytes,
        &ScaledDraft::activation_bytes, &ScaledDraft::attention_elements,
        &ScaledDraft::expert_row_bytes}) {
    draft.*part = Extended(least.*part, draft.*part, times);
  }
  draft.few = std::move(least.more);
  return draft;
}

}  // namespace milepost::plan
