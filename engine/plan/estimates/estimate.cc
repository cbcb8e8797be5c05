#include "engine/plan/estimates/estimate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

#include "common/check.h"
#include "engine/plan/passes/stream_pass.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

// What one op takes when nothing else runs.
struct Duration {
  double start = 0;
  double flops = 0;
  double memory = 0;
  double wire = 0;
  double Seconds() const { return start + std::max(flops, memory) + wire; }
};

// The ranks that take part in a collective, and how many of them are on one host.
struct Participants {
  int ranks = 1;
  int on_a_host = 1;
};

Participants ParticipantsOf(OpKind kind, const PlanOptions& options, int ranks_per_host) {
  const int all = options.Ranks();
  const int on_host = ranks_per_host > 0 ? ranks_per_host : all;
  if (kind == OpKind::kReduceScalars) return {all, std::min(all, on_host)};
  // Tensor ranks are neighbours.
  if (kind == OpKind::kTensorReduce || kind == OpKind::kTensorGather) {
    return {options.tensor, std::min(options.tensor, on_host)};
  }
  // Stages are neighbours too.
  const bool of_stages = kind == OpKind::kStageSend || kind == OpKind::kReduceShared;
  if (of_stages) return {2, options.ModelRanks() <= on_host ? 2 : 1};
  const int host = std::max(on_host / options.ModelRanks(), 1);
  const int shards = options.Shards();
  if (kind == OpKind::kReduceReplicas) {  // every shards-th rank
    const int ranks = options.Replicas();
    return {ranks, std::clamp(host / shards, 1, ranks)};
  }
  const int ranks = shards > 1 ? shards : options.world;
  return {ranks, std::min(ranks, host)};
}

// Bytes per second that a rank sends. Across hosts rings run over every rank's adapter at once, as
// many as the collective has ranks there.
double WireBandwidth(const Participants& who, const DeviceProfile& profile) {
  if (who.ranks <= who.on_a_host) return profile.host_bandwidth;
  return std::min(profile.host_bandwidth, profile.network_bandwidth * who.on_a_host);
}

double WireSeconds(const PlannedOp& planned, const PlanOptions& options,
                   const DeviceProfile& profile) {
  if (planned.wire_bytes <= 0) return 0;
  const Participants who = ParticipantsOf(planned.op.kind, options, profile.ranks_per_host);
  const double bandwidth = std::max(WireBandwidth(who, profile), 1.0);
  return planned.wire_bytes / bandwidth +
         profile.collective_seconds * std::ceil(std::log2(static_cast<double>(who.ranks)));
}

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

double DiskSeconds(const PlannedOp& planned, const DeviceProfile& profile) {
  constexpr double kUnknown = 2e9;
  const bool reads = planned.op.kind == OpKind::kReadState;
  const double known = reads ? profile.disk_read_bandwidth : profile.disk_write_bandwidth;
  return planned.bytes / (known > 0 ? known : kUnknown);
}

// A copy reads and writes its bytes, in two memories.
double OffloadSeconds(const PlannedOp& planned, const DeviceProfile& profile) {
  constexpr double kUnknown = 10e9;
  const bool host = planned.stream == Stream::kHost;
  const double known = host ? profile.host_memory_bandwidth : profile.host_device_bandwidth;
  return planned.bytes / (host ? 1 : 2) / (known > 0 ? known : kUnknown);
}

Duration DurationOf(const PlannedOp& planned, const PlanOptions& options,
                    const DeviceProfile& profile) {
  Duration duration = {.start = profile.op_seconds};
  if (SendsOrReceives(planned.stream)) {
    duration.wire = WireSeconds(planned, options, profile);
    return duration;
  }
  if (IsDisk(planned.stream)) {
    duration.memory = DiskSeconds(planned, profile);
    return duration;
  }
  if (IsOffloaded(planned.stream) && options.device == DeviceKind::kCuda) {
    duration.memory = OffloadSeconds(planned, profile);
    return duration;
  }
  const double part = IsAttention(planned.op.kind) ? profile.attention_fraction : 1;
  const DType operands = planned.op.attributes.fp8 ? DType::kE4M3
                         : planned.op.kind == graph::OpKind::kOrthogonalize
                             ? options.orthogonalization
                             : options.compute_dtype;
  duration.flops = planned.flops / (part * RateOf(profile, operands).achieved);
  duration.memory = planned.bytes / profile.memory_bandwidth;
  return duration;
}

// Runs a part of the program on its streams, in program order within each and with the waits
// between them. While computation and communication are both busy each goes on at 1/2 to 1 of its
// speed, as the device overlaps; copies to and from the host and what it computes slow down
// nothing.
class Timeline {
 public:
  Timeline(const StepPlan& plan, const std::vector<double>& seconds, double overlap)
      : program_(plan.train),
        seconds_(seconds),
        shared_speed_(0.5 + 0.5 * overlap),
        device_(plan.options.device) {}

  double Run(const std::vector<int32_t>& ops) && {
    done_.assign(program_.ops.size(), true);  // what is not run here is not waited for
    for (int32_t op : ops) {
      done_[op] = false;
      StreamOf(RunsOn(program_.ops[op].stream)).ops.push_back(op);
    }
    double now = 0;
    while (!AllOver()) now += Advance();
    return now;
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
    for (int32_t wait : program_.ops[op].wait_for) {
      if (!done_[wait]) return;
    }
    stream.running = true;
    stream.left = seconds_[op];
  }

  double SpeedOf(const StreamState& stream) {
    const StreamState& compute = StreamOf(Stream::kCompute);
    const StreamState& communication = StreamOf(Stream::kCommunication);
    const bool shares = &stream == &compute || &stream == &communication;
    return shares && compute.running && communication.running ? shared_speed_ : 1;
  }

  // To the end of the first op that ends; how long that takes.
  double Advance() {
    for (StreamState& stream : streams_) Start(stream);
    double least = std::numeric_limits<double>::infinity();
    std::array<double, kStreams> speeds;
    for (int s = 0; s < kStreams; ++s) {
      speeds[s] = SpeedOf(streams_[s]);
      if (streams_[s].running) least = std::min(least, streams_[s].left / speeds[s]);
    }
    MP_CHECK(std::isfinite(least)) << "the streams wait for each other";
    for (int s = 0; s < kStreams; ++s) {
      StreamState& stream = streams_[s];
      if (!stream.running) continue;
      const bool over = stream.left / speeds[s] <= least;
      stream.left -= least * speeds[s];
      if (!over && stream.left > 0) continue;
      stream.running = false;
      done_[stream.ops[stream.next++]] = true;
    }
    return least;
  }

  const Program& program_;
  const std::vector<double>& seconds_;
  const double shared_speed_;
  const DeviceKind device_;
  std::vector<bool> done_;
  StreamState streams_[kStreams];
};

// The ops of one micro-step; of the last one, followed by the update, with `last`.
std::vector<int32_t> OpsOf(const Program& program, bool last) {
  std::vector<int32_t> ops;
  for (const bool update : {false, true}) {
    for (size_t i = 0; i < program.ops.size(); ++i) {
      const When when = program.ops[i].when;
      if ((when == When::kUpdate) != update) continue;
      if (when == When::kEveryMicroStep || last) ops.push_back(static_cast<int32_t>(i));
    }
  }
  return ops;
}

double StepSeconds(const StepPlan& plan, const std::vector<double>& seconds, double overlap) {
  const auto run = [&](bool last) {
    return Timeline(plan, seconds, overlap).Run(OpsOf(plan.train, last));
  };
  const auto others = static_cast<double>(plan.options.MicroSteps() - 1);
  return (others > 0 ? others * run(/*last=*/false) : 0) + run(/*last=*/true);
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

StepEstimate EstimateStep(const StepPlan& plan, const DeviceProfile& profile) {
  StepEstimate estimate;
  std::vector<double> seconds(plan.train.ops.size());
  double compute = 0;
  double of_passes = 0;
  for (size_t i = 0; i < plan.train.ops.size(); ++i) {
    const PlannedOp& planned = plan.train.ops[i];
    const Duration duration = DurationOf(planned, plan.options, profile);
    seconds[i] = duration.Seconds();
    const double runs =
        planned.when == When::kEveryMicroStep ? static_cast<double>(plan.options.MicroSteps()) : 1;
    if (SendsOrReceives(planned.stream)) {
      estimate.communication_seconds += runs * duration.Seconds();
      continue;
    }
    if (IsDisk(planned.stream)) {
      estimate.disk_seconds += runs * duration.Seconds();
      continue;
    }
    if (IsOffloaded(planned.stream)) {
      estimate.offload_seconds += runs * duration.Seconds();
      continue;
    }
    compute += runs * duration.Seconds();
    if (planned.op.attributes.pass >= 0) of_passes += duration.Seconds();
    estimate.start_seconds += runs * duration.start;
    const bool by_flops = duration.flops >= duration.memory;
    (by_flops ? estimate.flop_seconds : estimate.memory_seconds) +=
        runs * std::max(duration.flops, duration.memory);
  }
  estimate.seconds = StepSeconds(plan, seconds, profile.overlap);
  estimate.exposed_seconds = std::max(0.0, estimate.seconds - compute);
  if (plan.options.pipeline > 1) {
    const PipelineTime time = TimeOf(ShapeOf(plan.options));
    estimate.bubble_seconds = of_passes * (time.step / time.busy - 1);
    estimate.seconds += estimate.bubble_seconds;
  }
  const auto& o = plan.options;
  const auto tokens = static_cast<double>(o.world * o.micro_batch * o.accumulation * o.sequence);
  estimate.tokens_per_second = tokens / estimate.seconds;
  estimate.mfu = plan.flops_per_step / (estimate.seconds * RateOf(profile, o.compute_dtype).peak);
  estimate.bound = BoundOf(estimate);
  return estimate;
}

PassTimes SecondsOfPasses(const StepPlan& plan, const DeviceProfile& profile) {
  PassTimes times = {};
  const std::vector<Pass> passes = PassesOf(ShapeOf(plan.options), plan.options.stage);
  for (const PlannedOp& planned : plan.train.ops) {
    const int pass = planned.op.attributes.pass;
    if (pass < 0 || planned.stream != Stream::kCompute) continue;
    times[static_cast<size_t>(passes[static_cast<size_t>(pass)].kind)] +=
        DurationOf(planned, plan.options, profile).Seconds();
  }
  for (double& seconds : times) seconds /= static_cast<double>(plan.options.accumulation);
  return times;
}

}  // namespace milepost::plan
