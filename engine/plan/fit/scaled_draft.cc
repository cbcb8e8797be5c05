#include "engine/plan/fit/scaled_draft.h"

#include <algorithm>
#include <utility>

#include "common/round_up.h"
#include "common/spec/model_sizes.h"
#include "common/status_macros.h"
#include "engine/plan/fit/required_bytes.h"
#include "engine/plan/passes/memory_pass.h"
#include "engine/plan/planner/planner.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

// The first layers of a backward and the last ones of a forward are not like the others.
constexpr int64_t kFewLayers = 4;
constexpr int64_t kMoreLayers = 6;

v1::JobSpec WithLayers(v1::JobSpec spec, int64_t layers) {
  v1::ModelSpec* model = spec.mutable_model();
  if (model->has_gpt2()) model->mutable_gpt2()->set_layers(layers);
  if (model->has_llama()) model->mutable_llama()->set_layers(layers);
  if (model->has_bert()) model->mutable_bert()->set_layers(layers);
  if (model->has_vit()) model->mutable_vit()->set_layers(layers);
  return spec;
}

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
    if (gradients_last) draft->gradient_bytes += 4 * elements;
  }
  for (const GroupState& state : StatesOf(group)) {
    if (state.buffer == kNoBuffer) continue;
    draft->optimizer_bytes += elements / static_cast<double>(state.elements_per_item) *
                              static_cast<double>(ByteSize(state.dtype));
  }
}

absl::StatusOr<ScaledDraft> DraftOne(const v1::JobSpec& spec, const RankPlace& place) {
  MP_ASSIGN_OR_RETURN(const PlanOptions options, OptionsFromSpec(spec, place.threads));
  MP_ASSIGN_OR_RETURN(const StepPlan plan, DraftTraining(spec, options, place.planning));
  ScaledDraft draft;
  draft.bytes = RequiredBytes(plan, LeastBytes(plan), place.host_memory);
  draft.host_bytes = HostBytes(plan);
  for (const FlatGroup& group : plan.groups) AddGroup(group, options.accumulation > 1, &draft);
  draft.activation_bytes = static_cast<double>(PeakActivationBytes(plan));
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
  for (const OpCosts& op : step.ops) {
    if (op.when != When::kEveryMicroStep || !runs(op)) continue;
    part.ops.push_back(op);
    part.ops.back().wait_for.clear();
  }
  return part.ops.empty() ? 0 : EstimateStep(part, profile).seconds;
}

}  // namespace

StepEstimate ScaledDraft::Estimate(const DeviceProfile& profile) const {
  StepEstimate estimate = EstimateStep(more, profile);
  if (times == 0) return estimate;
  const StepEstimate least = EstimateStep(few, profile);
  for (double StepEstimate::*const part :
       {&StepEstimate::seconds, &StepEstimate::flop_seconds, &StepEstimate::memory_seconds,
        &StepEstimate::start_seconds, &StepEstimate::exposed_seconds,
        &StepEstimate::communication_seconds, &StepEstimate::offload_seconds,
        &StepEstimate::disk_seconds}) {
    estimate.*part = std::max(0.0, Extended(least.*part, estimate.*part, times));
  }
  const PlanOptions& o = more.options;
  estimate.tokens_per_second = static_cast<double>(o.TokensOfStep()) / estimate.seconds;
  estimate.mfu = Extended(few.flops_per_step, more.flops_per_step, times) /
                 (estimate.seconds * RateOf(profile, o.compute_dtype).peak);
  return estimate;
}

double ScaledDraft::MicroStepSeconds(const DeviceProfile& profile) const {
  const auto computes = [](const OpCosts& op) { return op.stream == Stream::kCompute; };
  return Extended(SumOf(few, computes, profile), SumOf(more, computes, profile), times);
}

double ScaledDraft::TensorSeconds(const DeviceProfile& profile) const {
  const auto sums = [](const OpCosts& op) { return op.kind == OpKind::kTensorReduce; };
  return Extended(SumOf(few, sums, profile), SumOf(more, sums, profile), times);
}

absl::StatusOr<ScaledDraft> DraftScaled(const v1::JobSpec& spec, const RankPlace& place) {
  const Lengths lengths = LengthsFor(spec);
  const bool whole = lengths.times == 0;
  MP_ASSIGN_OR_RETURN(ScaledDraft draft,
                      DraftOne(whole ? spec : WithLayers(spec, lengths.more), place));
  if (whole) {
    draft.few = draft.more;
    return draft;
  }
  MP_ASSIGN_OR_RETURN(ScaledDraft least, DraftOne(WithLayers(spec, lengths.few), place));
  const double times = draft.times = lengths.times;
  draft.bytes = Extended(least.bytes, draft.bytes, times);
  draft.host_bytes = Extended(least.host_bytes, draft.host_bytes, times);
  for (double ScaledDraft::*const part :
       {&ScaledDraft::trained_elements, &ScaledDraft::parameter_bytes, &ScaledDraft::gradient_bytes,
        &ScaledDraft::optimizer_bytes, &ScaledDraft::activation_bytes}) {
    draft.*part = Extended(least.*part, draft.*part, times);
  }
  draft.few = std::move(least.more);
  return draft;
}

}  // namespace milepost::plan
