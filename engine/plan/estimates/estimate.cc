#include "engine/plan/estimates/estimate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "common/check.h"
#include "engine/ops/experts/experts.h"
#include "engine/plan/compression.h"
#include "engine/plan/estimates/links.h"
#include "engine/plan/passes/stream_pass.h"
#include "engine/plan/planning.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

// What one op takes when nothing else runs.
struct Duration {
  double start = 0;
  double flops = 0;
  double memory = 0;
  double wire = 0;
  // A GPU computes while it loads; a core mostly waits for what its inner caches do not hold.
  bool overlaps = true;
  double Seconds() const {
    return start + (overlaps ? std::max(flops, memory) : flops + memory) + wire;
  }
};

bool IsAttention(OpKind kind) {
  return kind == OpKind::kAttention || kind == OpKind::kAttentionBackward;
}

bool SendsOrReceives(Stream stream) {
  return stream == Stream::kCommunication || stream == Stream::kStageActivations ||
         stream == Stream::kStageGradients;
}

// But for the disk.
bool IsOffloaded(Stream stream) {
  return stream == Stream::kToHost || stream == Stream::kToDevice || stream == Stream::kHost;
}

double DiskSeconds(const OpCosts& op, const DeviceProfile& profile) {
  constexpr double kUnknown = 2e9;
  const bool reads = op.kind == OpKind::kReadState;
  const double known = reads ? profile.disk_read_bandwidth : profile.disk_write_bandwidth;
  return op.bytes / (known > 0 ? known : kUnknown);
}

// A copy reads and writes its bytes, in two memories.
double OffloadSeconds(const OpCosts& op, const DeviceProfile& profile) {
  constexpr double kUnknown = 10e9;
  const bool host = op.stream == Stream::kHost;
  const double known = host ? profile.host_memory_bandwidth : profile.host_device_bandwidth;
  return op.bytes / (host ? 1 : 2) / (known > 0 ? known : kUnknown);
}

// Of `rate` that the op reaches.
double PartOf(const OpCosts& op, const MatmulRate& rate, const DeviceProfile& profile) {
  const auto part_at = [](double size, double half) { return size > 0 ? size / (size + half) : 1; };
  if (!IsAttention(op.kind)) {
    return op.product_part * part_at(static_cast<double>(op.product_least), rate.product_half) *
           part_at(static_cast<double>(op.added_rows), rate.accumulate_half);
  }
  const double best = rate.attention > 0 ? rate.attention : profile.attention_fraction;
  return best * op.attention_part * part_at(op.attention_seen, rate.attention_half);
}

Duration DurationOf(const OpCosts& op, const PlanOptions& options, const DeviceProfile& profile) {
  Duration duration = {.start = profile.op_seconds,
                       .overlaps = options.device == DeviceKind::kCuda};
  if (IsDisk(op.stream)) {
    duration.memory = DiskSeconds(op, profile);
    return duration;
  }
  if (IsOffloaded(op.stream) && options.device == DeviceKind::kCuda) {
    duration.memory = OffloadSeconds(op, profile);
    return duration;
  }
  if (SendsOrReceives(op.stream)) {
    duration.wire = CollectiveSeconds(op.kind, op.wire_bytes, options, profile, op.of_experts);
    // What follows a collective on its stream, and sends nothing.
    if (op.wire_bytes <= 0) duration.memory = op.bytes / profile.memory_bandwidth;
    return duration;
  }
  const DType operands = op.fp8                              ? DType::kE4M3
                         : op.kind == OpKind::kOrthogonalize ? options.orthogonalization
                         : IsCompression(op.kind)            ? DType::kF32
                                                             : options.compute_dtype;
  const MatmulRate rate = RateOf(profile, operands);
  duration.flops = op.flops / (PartOf(op, rate, profile) * rate.achieved);
  duration.memory = op.bytes / profile.memory_bandwidth;
  return duration;
}

// Runs a part of the program on its streams, in program order within each and with the waits
// between them. While computation and communication are both busy each goes on at 1/2 to 1 of its
// speed, as what communicates overlaps; copies to and from the host and what it computes slow down
// nothing.
class Timeline {
 public:
  // `overlaps`: of each op that communicates.
  Timeline(const StepCosts& step, const std::vector<double>& seconds,
           const std::vector<double>& overlaps)
      : step_(step), seconds_(seconds), overlaps_(overlaps), device_(step.options.device) {}

  // When each op ends; of those that are not run 0.
  std::vector<double> Run(const std::vector<int32_t>& ops) && {
    done_.assign(step_.ops.size(), true);  // what is not run here is not waited for
    ends_.assign(step_.ops.size(), 0);
    for (int32_t op : ops) {
      done_[op] = false;
      StreamOf(RunsOn(step_.ops[op].stream)).ops.push_back(op);
    }
    while (!AllOver()) Advance();
    return std::move(ends_);
  }

 private:
  struct StreamState {
    std::vector<int32_t> ops;
    size_t next = 0;
    bool running = false;
    double left = 0;  // seconds of the running op, at full speed
  };

  // A CPU copies and updates in turn with what it computes. There is one disk, which serves one
  // after the other.
  Stream RunsOn(Stream stream) const {
    if (IsDisk(stream)) return Stream::kDisk;
    return device_ == DeviceKind::kCpu && IsOffloaded(stream) ? Stream::kCompute : stream;
  }

  StreamState& StreamOf(Stream stream) { return streams_[static_cast<int>(stream)]; }

  bool AllOver() const {
    return std::all_of(std::begin(streams_), std::end(streams_),
                       [](const StreamState& s) { return s.next == s.ops.size(); });
  }

  void Start(StreamState& stream) {
    if (stream.running || stream.next == stream.ops.size()) return;
    const int32_t op = stream.ops[stream.next];
    for (int32_t wait : step_.ops[op].wait_for) {
      if (!done_[wait]) return;
    }
    stream.running = true;
    stream.left = seconds_[op];
  }

  double SpeedOf(const StreamState& stream) {
    const StreamState& compute = StreamOf(Stream::kCompute);
    const StreamState& communication = StreamOf(Stream::kCommunication);
    const bool shares = &stream == &compute || &stream == &communication;
    if (!shares || !compute.running || !communication.running) return 1;
    return 0.5 + 0.5 * overlaps_[communication.ops[communication.next]];
  }

  // To the end of the first op that ends.
  void Advance() {
    for (StreamState& stream : streams_) Start(stream);
    double least = std::numeric_limits<double>::infinity();
    std::array<double, kStreams> speeds;
    for (int s = 0; s < kStreams; ++s) {
      speeds[s] = SpeedOf(streams_[s]);
      if (streams_[s].running) least = std::min(least, streams_[s].left / speeds[s]);
    }
    MP_CHECK(std::isfinite(least)) << "the streams wait for each other";
    now_ += least;
    for (int s = 0; s < kStreams; ++s) {
      StreamState& stream = streams_[s];
      if (!stream.running) continue;
      const bool over = stream.left / speeds[s] <= least;
      stream.left -= least * speeds[s];
      if (!over && stream.left > 0) continue;
      stream.running = false;
      const int32_t op = stream.ops[stream.next++];
      done_[op] = true;
      ends_[op] = now_;
    }
  }

  const StepCosts& step_;
  const std::vector<double>& seconds_;
  const std::vector<double>& overlaps_;
  const DeviceKind device_;
  double now_ = 0;
  std::vector<bool> done_;
  std::vector<double> ends_;
  StreamState streams_[kStreams];
};

// The ops of one micro-step; of the last one, followed by the update, with `last`.
std::vector<int32_t> OpsOf(const StepCosts& step, bool last) {
  std::vector<int32_t> ops;
  for (const bool update : {false, true}) {
    for (size_t i = 0; i < step.ops.size(); ++i) {
      const When when = step.ops[i].when;
      if ((when == When::kUpdate) != update) continue;
      if (when == When::kEveryMicroStep || last) ops.push_back(static_cast<int32_t>(i));
    }
  }
  return ops;
}

// Of a step: what it takes, and when each op of its last micro-step ends, from that one's begin on.
struct StepTimes {
  double seconds = 0;
  std::vector<double> ends;
};

StepTimes TimesOf(const StepCosts& step, const std::vector<double>& seconds,
                  const std::vector<double>& overlaps) {
  const auto run = [&](bool last) {
    return Timeline(step, seconds, overlaps).Run(OpsOf(step, last));
  };
  const auto longest = [](const std::vector<double>& ends) {
    return ends.empty() ? 0 : *std::max_element(ends.begin(), ends.end());
  };
  const auto others = static_cast<double>(step.options.MicroSteps() - 1);
  StepTimes times = {.ends = run(/*last=*/true)};
  times.seconds = (others > 0 ? others * longest(run(/*last=*/false)) : 0) + longest(times.ends);
  return times;
}

Bound BoundOf(const StepEstimate& estimate) {
  const double largest = std::max(estimate.flop_seconds, estimate.memory_seconds);
  if (estimate.exposed_seconds > largest) {
    const double largest_beside =
        std::max({estimate.communication_seconds, estimate.offload_seconds, estimate.disk_seconds});
    if (estimate.disk_seconds == largest_beside) return Bound::kDisk;
    return estimate.offload_seconds == largest_beside ? Bound::kOffload : Bound::kCommunication;
  }
  return estimate.memory_seconds > estimate.flop_seconds ? Bound::kMemory : Bound::kCompute;
}

}  // namespace

const char* Name(Bound bound) {
  switch (bound) {
    case Bound::kCompute:
      return "compute";
    case Bound::kMemory:
      return "memory";
    case Bound::kCommunication:
      return "communication";
    case Bound::kOffload:
      return "offload";
    case Bound::kDisk:
      return "disk";
  }
  return "unknown";
}

namespace {

double SeenOf(const graph::Attributes& a) {
  const int64_t reach = a.window > 0 ? std::min(a.window, a.sequence) : a.sequence;
  return static_cast<double>(reach) * (a.causal ? 1 : 2);
}

// On a GPU heads of fewer than 128 use the tensor cores less well, and short sequences leave parts
// of tiles empty, the more where a position sees only half of them. Within a percent of what
// forward and backward took together on an H200 with 8192 positions and heads of 128, with 4096 and
// 64, and with 1024 and 64 (bench/results/gpu_step_vs_torch_h200.json).
double AttentionPartOf(const StepPlan& plan, const graph::Op& op) {
  if (!IsAttention(op.kind) || plan.options.device != DeviceKind::kCuda) return 1;
  const graph::Attributes& a = op.attributes;
  const bool forward = op.kind == OpKind::kAttention;
  const graph::ValueId out = forward ? op.outputs[0].value : op.inputs[1];
  const double width = static_cast<double>(plan.train.graph.values[out].shape[1]) /
                       static_cast<double>(std::max<int64_t>(1, a.heads));
  const double seen = SeenOf(a);
  return std::cbrt(std::min(1.0, width / 128)) * seen / (seen + 500);
}

// Products of experts are the own kernels of a GPU, which multiply tiles of 128 rows of one expert.
// No GPU has run them: how fast they are at best is a guess, about half of what a library reaches.
double ProductPartOf(const StepPlan& plan, const graph::Op& op) {
  if (!ops::IsExpertProduct(op.kind) || plan.options.device != DeviceKind::kCuda) return 1;
  constexpr double kBest = 0.5, kHalfATile = 64;
  const graph::ExpertsAttributes& experts = op.attributes.experts;
  const int64_t all =
      experts.even_rows > 0 ? experts.even_rows : plan.train.graph.values[op.inputs[0]].shape[0];
  const double rows = static_cast<double>(all) / static_cast<double>(experts.count);
  return kBest * rows / (rows + kHalfATile);
}

// Of products of two matrices, which have all of the sizes between them. The weight of an image's
// patches has further dimensions.
int64_t ProductLeastOf(const StepPlan& plan, const graph::Op& op) {
  switch (op.kind) {
    case OpKind::kLinear:
    case OpKind::kLinearBackwardInput:
    case OpKind::kLinearBackwardWeight:
    case OpKind::kLmHeadParts:
    case OpKind::kLmHeadLoss:
    case OpKind::kLmHeadLossBackward:
    case OpKind::kLmHeadLogProbs:
    case OpKind::kLmHeadLogProbsBackward:
      break;
    default:
      return 0;
  }
  int64_t least = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < 2 && i < op.inputs.size(); ++i) {
    if (op.inputs[i] == graph::kNoValue) continue;
    const graph::Shape& shape = plan.train.graph.values[op.inputs[i]].shape;
    if (shape.empty() || shape[0] == 0) continue;
    least = std::min({least, shape[0], graph::Elements(shape) / shape[0]});
  }
  // Heads multiply so many rows at a time.
  if (op.attributes.chunk_rows > 0) least = std::min(least, op.attributes.chunk_rows);
  return least;
}

// The first micro-batch writes the gradient that the others add to: it counts as they do.
int64_t AddedRowsOf(const StepPlan& plan, const graph::Op& op) {
  if (op.kind != OpKind::kLinearBackwardWeight || plan.options.accumulation <= 1) return 0;
  const graph::Shape& shape = plan.train.graph.values[op.inputs[0]].shape;
  return shape.empty() ? 0 : shape[0];
}

}  // namespace

StepCosts CostsOf(const StepPlan& plan) {
  StepCosts step = {.options = plan.options, .flops_per_step = plan.flops_per_step};
  for (const PlannedOp& planned : plan.outer.ops) {
    step.outer.push_back({.kind = planned.op.kind,
                          .stream = planned.stream,
                          .wait_for = planned.wait_for,
                          .bytes = planned.bytes,
                          .wire_bytes = planned.wire_bytes});
  }
  step.ops.reserve(plan.train.ops.size());
  for (const PlannedOp& planned : plan.train.ops) {
    step.ops.push_back({.kind = planned.op.kind,
                        .stream = planned.stream,
                        .when = planned.when,
                        .fp8 = planned.op.attributes.fp8,
                        .attention_part = AttentionPartOf(plan, planned.op),
                        .attention_seen = SeenOf(planned.op.attributes),
                        .product_part = ProductPartOf(plan, planned.op),
                        .product_least = ProductLeastOf(plan, planned.op),
                        .added_rows = AddedRowsOf(plan, planned.op),
                        .wait_for = planned.wait_for,
                        .flops = planned.flops,
                        .bytes = planned.bytes,
                        .wire_bytes = planned.wire_bytes,
                        .of_experts = planned.op.attributes.group >= 0 &&
                                      plan.groups[planned.op.attributes.group].of_experts,
                        .pass = planned.op.attributes.pass,
                        .work = WorkOf(planned.op)});
  }
  return step;
}

StepEstimate EstimateStep(const StepPlan& plan, const DeviceProfile& profile) {
  return EstimateStep(CostsOf(plan), profile);
}

namespace {

bool IsStageStream(Stream stream) {
  return stream == Stream::kStageActivations || stream == Stream::kStageGradients;
}

// Of what runs, as if a pipeline's transfers took no time. `ends`: as StepTimes has them.
StepEstimate EstimateAlone(const StepCosts& step, const DeviceProfile& profile,
                           std::vector<double>* ends = nullptr) {
  StepEstimate estimate;
  const PlanOptions& o = step.options;
  std::vector<double> seconds(step.ops.size());
  std::vector<double> overlaps(step.ops.size(), profile.overlap);
  double compute = 0;
  for (size_t i = 0; i < step.ops.size(); ++i) {
    const OpCosts& op = step.ops[i];
    const Duration duration = DurationOf(op, o, profile);
    seconds[i] = IsStageStream(op.stream) ? 0 : duration.Seconds();
    const double runs = op.when == When::kEveryMicroStep ? static_cast<double>(o.MicroSteps()) : 1;
    if (SendsOrReceives(op.stream)) {
      if (op.wire_bytes > 0) overlaps[i] = OverlapOf(op.kind, o, profile, op.of_experts);
      estimate.communication_seconds += runs * duration.Seconds();
      continue;
    }
    if (IsDisk(op.stream)) {
      estimate.disk_seconds += runs * duration.Seconds();
      continue;
    }
    if (IsOffloaded(op.stream)) {
      estimate.offload_seconds += runs * duration.Seconds();
      continue;
    }
    compute += runs * duration.Seconds();
    estimate.start_seconds += runs * duration.start;
    const bool by_flops = duration.flops >= duration.memory;
    if (by_flops || !duration.overlaps) estimate.flop_seconds += runs * duration.flops;
    if (!by_flops || !duration.overlaps) estimate.memory_seconds += runs * duration.memory;
  }
  StepTimes times = TimesOf(step, seconds, overlaps);
  estimate.seconds = times.seconds;
  if (ends != nullptr) *ends = std::move(times.ends);
  estimate.exposed_seconds = std::max(0.0, estimate.seconds - compute);
  return estimate;
}

// By pass: from the end of the one before it to its own end.
std::vector<double> SecondsOfPasses(const StepCosts& step, const std::vector<double>& ends,
                                    size_t count) {
  std::vector<double> last(count, 0);
  for (size_t i = 0; i < step.ops.size(); ++i) {
    const int pass = step.ops[i].pass;
    if (pass >= 0) last[pass] = std::max(last[pass], ends[i]);
  }
  double before = 0;
  for (double& seconds : last) {
    const double end = std::max(before, seconds);
    seconds = end - std::exchange(before, end);
  }
  return last;
}

// The lower median: the first pass may wait for what no other waits for, and the last for
// reductions.
double MedianOf(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Of the options' stage: how many of its passes hand on activations (0) or gradients (1) at most.
double SendingPasses(const StepCosts& step, int direction) {
  const PlanOptions& o = step.options;
  const bool ends = direction == 0 ? o.IsLastStage() : o.stage == 0;  // with one of its chunks
  return static_cast<double>(o.accumulation) * std::max(1, o.chunks - (ends ? 1 : 0));
}

// Of a stage whose step takes `alone` without transfers, with ops that end at `ends`.
StageSeconds SecondsOfStage(const StepCosts& step, const DeviceProfile& profile, double alone,
                            const std::vector<double>& ends) {
  const std::vector<Pass> passes = PassesOf(ShapeOf(step.options), step.options.stage);
  const std::vector<double> seconds = SecondsOfPasses(step, ends, passes.size());
  const auto chunks = static_cast<size_t>(step.options.chunks);
  std::vector<std::array<std::vector<double>, 3>> of_chunk(chunks);  // by kind
  for (size_t i = 0; i < passes.size(); ++i) {
    of_chunk[static_cast<size_t>(passes[i].chunk)][static_cast<size_t>(passes[i].kind)].push_back(
        seconds[i]);
  }
  StageSeconds stage = {.passes = std::vector<PassTimes>(chunks, PassTimes{}), .rest = alone};
  const auto micro_batches = static_cast<double>(step.options.accumulation);
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    for (size_t kind = 0; kind < of_chunk[chunk].size(); ++kind) {
      stage.passes[chunk][kind] = MedianOf(of_chunk[chunk][kind]);
      stage.rest -= micro_batches * stage.passes[chunk][kind];
    }
  }
  stage.rest = std::max(0.0, stage.rest);
  double sent[2] = {0, 0};  // activations, gradients
  for (const OpCosts& op : step.ops) {
    if (op.kind != OpKind::kStageSend) continue;
    sent[op.stream == Stream::kStageGradients] += DurationOf(op, step.options, profile).Seconds();
  }
  stage.transfer = std::max(sent[0] / SendingPasses(step, 0), sent[1] / SendingPasses(step, 1));
  return stage;
}

double OuterSeconds(const StepCosts& step, const DeviceProfile& profile) {
  StepCosts outer = {.options = step.options, .ops = step.outer};
  outer.options.accumulation = outer.options.side_by_side = 1;  // it runs once
  return EstimateAlone(outer, profile).seconds;
}

// With the waiting for `stages`, if there are any, and the step's part of an outer one.
void Finish(const StepCosts& step, const DeviceProfile& profile,
            const std::vector<StageSeconds>& stages, StepEstimate* estimate) {
  const PlanOptions& o = step.options;
  if (!stages.empty()) {
    const double seconds = PipelineSeconds(ShapeOf(o), stages);
    estimate->bubble_seconds = std::max(0.0, seconds - estimate->seconds);
    estimate->seconds += estimate->bubble_seconds;
  }
  if (!step.outer.empty()) {
    estimate->outer_seconds = OuterSeconds(step, profile);
    const double part = estimate->outer_seconds / static_cast<double>(o.outer_every);
    estimate->seconds += part;
    estimate->exposed_seconds += part;
    estimate->communication_seconds += part;
  }
  estimate->tokens_per_second = static_cast<double>(o.TokensOfStep()) / estimate->seconds;
  estimate->mfu = step.flops_per_step / (estimate->seconds * RateOf(profile, o.compute_dtype).peak);
  estimate->bound = BoundOf(*estimate);
}

}  // namespace

StepEstimate EstimateStep(const StepCosts& step, const DeviceProfile& profile) {
  std::vector<double> ends;
  StepEstimate estimate = EstimateAlone(step, profile, &ends);
  std::vector<StageSeconds> stages;
  if (step.options.pipeline > 1) {
    stages.assign(static_cast<size_t>(step.options.pipeline),
                  SecondsOfStage(step, profile, estimate.seconds, ends));
  }
  Finish(step, profile, stages, &estimate);
  return estimate;
}

StageSeconds SecondsOfStage(const StepCosts& step, const DeviceProfile& profile) {
  std::vector<double> ends;
  const double alone = EstimateAlone(step, profile, &ends).seconds;
  return SecondsOfStage(step, profile, alone, ends);
}

std::vector<PassTimes> TimesOfRuns(const std::vector<StageSeconds>& stages) {
  std::vector<PassTimes> times;
  const size_t chunks = stages.empty() ? 0 : stages[0].passes.size();
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    for (const StageSeconds& stage : stages) times.push_back(stage.passes[chunk]);
  }
  return times;
}

double PipelineSeconds(const PipelineShape& shape, const std::vector<StageSeconds>& stages) {
  double passes = 0, transfer = 0, rest = 0;
  for (const StageSeconds& stage : stages) {
    transfer = std::max(transfer, stage.transfer);
    rest = std::max(rest, stage.rest);
  }
  for (const auto& of_stage : TimelineOf(shape, TimesOfRuns(stages), transfer)) {
    passes = std::max(passes, of_stage.back().end);
  }
  return passes + rest;
}

StepEstimate EstimateStage(const StepCosts& step, const DeviceProfile& profile,
                           const std::vector<StageSeconds>& stages) {
  StepEstimate estimate = EstimateAlone(step, profile);
  Finish(step, profile, stages, &estimate);
  return estimate;
}

}  // namespace milepost::plan
