#include "engine/plan/fit/mesh_bounds.h"

#include <algorithm>

#include "engine/plan/estimates/links.h"
#include "engine/plan/planning.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

// Of a stage's passes, how many gather a layer at least, as a part of all. Around a turn from a
// forward to a backward, or back, the layers that come again soonest are kept (gather_pass.h).
double GatheringPart(const PlanOptions& o, int64_t layers) {
  const int64_t of_stage = layers / o.pipeline;
  if (of_stage <= 1 + o.prefetch) return 0;
  const int64_t kept = std::min<int64_t>(of_stage, (1 + o.prefetch) / 2 + 1);
  return 1 - static_cast<double>(kept) / static_cast<double>(of_stage);
}

// How many elements a rank gathers in a step, of a stage's `elements`, of which `of_layers` are the
// layers'.
double LeastGathered(const PlanOptions& o, double elements, double of_layers, int64_t layers) {
  // Where few layers are a run of blocks, all passes that go through it at a time share a gather.
  if (!o.ShardsParameters() || o.chunks > 1) return elements;
  const auto micro_batches = static_cast<double>(o.accumulation);
  if (o.pipeline == 1) return micro_batches * elements;
  // A stage's forward and backward of a micro-batch are far apart: each gathers. Not so the
  // embedding's and the head's.
  const double times = std::max(1.0, 2 * micro_batches * GatheringPart(o, layers));
  return elements + (times - 1) * of_layers;
}

// Of gradients and parameters alone, as a ring sends them, of a stage that has the mean. Without
// those of experts that ranks share out: of these fewer ranks have the same ones. All experts are
// layers'.
double LeastDataSeconds(const PlanOptions& o, const ScaledDraft& alike, int64_t layers,
                        const DeviceProfile& profile) {
  if (o.world == 1) return 0;
  const double elements = (alike.trained_elements - alike.expert_elements) / o.pipeline;
  const double of_layers = std::max(0.0, alike.layer_elements - alike.expert_elements);
  const double others = 1 - 1.0 / o.Shards();
  const double gradients = elements * static_cast<double>(ByteSize(o.grad_reduce));
  const double parameters = static_cast<double>(ByteSize(o.compute_dtype)) *
                            LeastGathered(o, elements, of_layers / o.pipeline, layers);
  const double reduced = o.Shards() == 1 ? 2 * (1 - 1.0 / o.world) * gradients : others * gradients;
  double seconds = static_cast<double>(o.GradientsPass() ? o.MicroSteps() : 1) *
                   CollectiveSeconds(OpKind::kReduceGradients, reduced, o, profile);
  if (o.Replicas() > 1) {
    const double across = 2 * (1 - 1.0 / o.Replicas()) * gradients / o.Shards();
    seconds += CollectiveSeconds(OpKind::kReduceReplicas, across, o, profile);
  }
  return seconds + CollectiveSeconds(OpKind::kGatherParameters, others * parameters, o, profile);
}

// `bytes`: of the optimizer's states of a stage.
double UpdateSeconds(const PlanOptions& o, double bytes, const DeviceProfile& profile) {
  const double rate =
      o.offload_optimizer ? profile.host_memory_bandwidth : profile.memory_bandwidth;
  return rate > 0 ? 2 * bytes / o.Shards() / rate : 0;
}

// Of a micro-batch, in the forward and the same again in the backward: of their own tokens context
// ranks send all heads but their own.
double LeastExchangeSeconds(const PlanOptions& o, const ScaledDraft& alike,
                            const DeviceProfile& profile) {
  if (o.context == 1) return 0;
  const double own = alike.attention_elements / o.context * (1 - 1.0 / o.context);
  return CollectiveSeconds(OpKind::kTokensToHeads,
                           own * static_cast<double>(ByteSize(o.compute_dtype)), o, profile);
}

// The same of rows for experts, of which context ranks send their own tokens' alone.
double LeastRowsSeconds(const PlanOptions& o, const ScaledDraft& alike,
                        const DeviceProfile& profile) {
  return CollectiveSeconds(OpKind::kRowsToExperts, alike.expert_row_bytes / o.context, o, profile);
}

// Of a stage's exchanges of heads, those that nothing hides: a forward's, and of a backward those
// of what attention's gradient makes, which all that is left to compute waits for.
constexpr double kExchangesWaitedFor = 1.5;

// Whatever layers the stages have. A micro-batch goes through all of them. And the last stage but
// one does all micro-batches, which come through those before it (where these have several runs of
// blocks, through one of them), and go back; in zero-bubble steps gradients of weights may be made
// when nothing goes back any more. The last one may have fewer layers for its head.
double LeastSecondsOfFew(const PlanOptions& o, int64_t layers, const PassTimes& passes,
                         double transfer) {
  const double stages = o.pipeline, before = stages - 2;
  const auto of = [&](PassKind kind) { return passes[static_cast<size_t>(kind)]; };
  const double back = of(PassKind::kForward) + of(PassKind::kBackward);  // and forth
  const double all = back + of(PassKind::kWeights);
  const double fewest = static_cast<double>(layers / o.pipeline) * stages /
                        static_cast<double>(layers);  // of the mean
  const bool splits = o.schedule == PipelineSchedule::kZeroBubble;
  const double there = splits ? of(PassKind::kForward) : back;
  const double stage = before * (there / o.chunks + (splits ? 1 : 2) * transfer) +
                       fewest * static_cast<double>(o.accumulation) * all;
  return std::max(stages * back + 2 * (stages - 1) * transfer, stage);
}

}  // namespace

double LeastBytesOf(const PlanOptions& o, const ScaledDraft& alike) {
  const auto shards = static_cast<double>(o.Shards());
  return alike.parameter_bytes / (o.ShardsParameters() ? shards : 1) +
         alike.gradient_bytes / (o.ShardsGradients() && o.pipeline == 1 ? shards : 1) +
         (o.offload_optimizer ? 0 : alike.optimizer_bytes / shards) +
         (o.pipeline == 1 ? alike.activation_bytes / o.context : 0);
}

// Its first stage keeps micro-batches of no fewer layers than any stage has at least; some stage
// has a part of all. Where gradients of weights are made later, one micro-batch has what
// `keeps_all` keeps; where layers are computed again, one of them has.
double LeastBytesOfStage(const PlanOptions& o, const ScaledDraft& alike,
                         const ScaledDraft& keeps_all, int64_t layers, int in_flight) {
  const double whole = LeastBytesOf(o, alike);
  const double of_first = o.chunks * static_cast<double>(layers / (o.pipeline * o.chunks)) /
                          static_cast<double>(layers);
  const double of_tokens = 1.0 / o.context;
  const double last = of_tokens * (o.schedule == PipelineSchedule::kZeroBubble
                                       ? std::max(alike.layer_bytes, keeps_all.layer_bytes)
                                       : alike.layer_bytes);
  const double again = o.recompute == Recompute::kFull
                           ? of_tokens * keeps_all.layer_bytes / static_cast<double>(layers)
                           : 0;
  const double micro_batches = static_cast<double>(in_flight) / o.chunks;
  const double kept = of_tokens * alike.layer_bytes * (micro_batches - 1) + last;
  return std::max(of_first * (whole + kept), (whole + last) / o.pipeline) + again;
}

double LeastSecondsOf(const PlanOptions& o, const ScaledDraft& alike, const AlikeSeconds& seconds,
                      int64_t layers, double waiting, const DeviceProfile& profile) {
  const double stages = o.pipeline;
  const double micro_batches = static_cast<double>(o.accumulation) / stages;  // of a whole model
  const double computed = micro_batches * waiting * seconds.compute / o.context;
  const double summed = micro_batches * waiting * seconds.sums / o.context;
  const double heads = micro_batches * LeastExchangeSeconds(o, alike, profile);
  const double rows = micro_batches * LeastRowsSeconds(o, alike, profile);
  const double update = UpdateSeconds(o, alike.optimizer_bytes / stages, profile);
  const double data = LeastDataSeconds(o, alike, layers, profile);
  if (o.pipeline == 1) {
    // In forwards, which have nothing else to do meanwhile; in backwards there are gradients.
    const double exchanged = heads + rows;
    return kBoundPart * std::max(computed + exchanged + update, summed + 2 * exchanged + data);
  }
  // A stage waits for sums and most exchanges (of rows for experts, those of forwards), and what it
  // sends of gradients goes beside its last pass alone.
  const double waited = summed + waiting * (kExchangesWaitedFor * heads + rows);
  const double hidden = o.ShardsParameters() ? computed : seconds.compute / stages / o.context;
  return kBoundPart * (computed + waited + update + std::max(0.0, data - hidden));
}

double LeastSecondsOfPasses(const PlanOptions& o, int64_t layers, const PassTimes& layer,
                            double transfer, const std::vector<StageOrder>& orders) {
  const double stages = o.pipeline, others = stages - 1;
  const auto micro_batches = static_cast<double>(o.accumulation);
  PassTimes passes = layer;
  double of_micro_batch = 0;
  for (double& pass : passes) of_micro_batch += pass *= static_cast<double>(layers) / stages;
  // With few micro-batches stages that have more layers than others may wait less.
  if (micro_batches < stages + 2) {
    return LeastSecondsOfFew(o, layers, passes, transfer);
  }
  if (o.schedule == PipelineSchedule::kOneForwardOneBackward) {
    return (micro_batches + others) * of_micro_batch + 2 * others * transfer;
  }
  double step = 0;
  for (double& pass : passes) pass /= o.chunks;
  const std::vector<PassTimes> times(orders.size() * static_cast<size_t>(o.chunks), passes);
  for (const std::vector<TimedPass>& stage : TimelineOf(orders, times, transfer)) {
    step = std::max(step, stage.back().end);
  }
  return step;
}

double LeastSecondsOfStages(const PlanOptions& o, const ScaledDraft& alike,
                            const AlikeSeconds& seconds, int64_t layers, double passes,
                            const DeviceProfile& profile) {
  const double stages = o.pipeline;
  const double update = UpdateSeconds(o, alike.optimizer_bytes / stages, profile);
  const double data = LeastDataSeconds(o, alike, layers, profile);
  // At most: a context rank may take more than its part, since small products are slower.
  const double micro_batch = seconds.compute / stages;
  double left = data - micro_batch;
  if (o.ShardsParameters()) {
    // It is a stage alone that gathers beside what it computes, and both are slower meanwhile.
    const double speed = 0.5 + 0.5 * OverlapOf(graph::OpKind::kGatherParameters, o, profile);
    const double computed = micro_batch * static_cast<double>(o.accumulation);
    left = data - (2 * speed - 1) / speed * std::min(computed, data);
  }
  return kBoundPart * (passes + update + std::max(0.0, left));
}

bool FewOps(const PlanOptions& o, const ScaledDraft& alike) {
  const double work = alike.layer_work / o.pipeline * static_cast<double>(o.accumulation);
  return o.pipeline == 1 || work <= static_cast<double>(kLimitsOfRequest.ops);
}

bool FewOpsOfStages(const PlanOptions& o, int64_t layers, const LayerPasses& layer) {
  const int64_t most = (layers + o.pipeline - 1) / o.pipeline;  // some stage has as many
  const double work = layer.work * static_cast<double>(most * o.accumulation);
  return work <= static_cast<double>(kLimitsOfRequest.ops);
}

}  // namespace milepost::plan
