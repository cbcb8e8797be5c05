#include "engine/plan/pipeline/schedule.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"

namespace milepost::plan {
namespace {

std::vector<Pass> OneForwardOneBackward(const PipelineShape& shape, int stage) {
  std::vector<Pass> passes;
  const int warm_up = std::min(shape.stages - 1 - stage, shape.micro_batches);
  for (int i = 0; i < shape.micro_batches + warm_up; ++i) {
    if (i < shape.micro_batches) passes.push_back({PassKind::kForward, i});
    if (i >= warm_up) passes.push_back({PassKind::kBackward, i - warm_up});
  }
  return passes;
}

// When passes are over: by kind, stage and micro-batch. Each takes 1, and is done as early as it
// can be.
class Timetable {
 public:
  explicit Timetable(const PipelineShape& shape) : shape_(shape), lanes_(shape.stages) {
    for (auto& of_kind : ends_) {
      of_kind.assign(shape.stages, std::vector<int64_t>(shape.micro_batches, kNever));
    }
  }

  // Every stage does what it can begin first: of what can begin at once a backward before a forward
  // before weights, so that nobody waits for the stage.
  void Run() {
    const int64_t passes = int64_t{3} * shape_.stages * shape_.micro_batches;
    std::vector<Choice> next;  // by stage
    for (int s = 0; s < shape_.stages; ++s) next.push_back(Next(s));
    for (int64_t done = 0; done < passes; ++done) {
      const auto first =
          std::min_element(next.begin(), next.end(),
                           [](const Choice& a, const Choice& b) { return a.begin < b.begin; });
      const auto stage = static_cast<int>(first - next.begin());
      Do(stage, *first);
      // Only its neighbours wait for it.
      const int last = std::min(stage + 1, shape_.stages - 1);
      for (int s = std::max(0, stage - 1); s <= last; ++s) next[s] = Next(s);
    }
  }

  const std::vector<Pass>& passes(int stage) const { return lanes_[stage].passes; }

 private:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  struct Lane {
    int64_t free = 0;
    int forwards = 0, backwards = 0, weights = 0;  // done
    std::vector<Pass> passes;
  };
  struct Choice {
    Pass pass;
    int64_t begin = kNever;
  };

  int64_t& End(PassKind kind, int stage, int micro_batch) {
    return ends_[static_cast<int>(kind)][stage][micro_batch];
  }

  int64_t ForwardFrom(int stage, const Lane& lane) {
    const bool full = lane.forwards - lane.weights > shape_.stages;
    if (lane.forwards == shape_.micro_batches || full) return kNever;
    return stage == 0 ? 0 : End(PassKind::kForward, stage - 1, lane.forwards);
  }

  int64_t BackwardFrom(int stage, const Lane& lane) {
    if (lane.backwards == lane.forwards) return kNever;
    return stage == shape_.stages - 1 ? 0 : End(PassKind::kBackward, stage + 1, lane.backwards);
  }

  Choice Next(int stage) {
    const Lane& lane = lanes_[stage];
    const Choice choices[] = {
        {{PassKind::kBackward, lane.backwards}, BackwardFrom(stage, lane)},
        {{PassKind::kForward, lane.forwards}, ForwardFrom(stage, lane)},
        {{PassKind::kWeights, lane.weights}, lane.weights < lane.backwards ? 0 : kNever}};
    Choice best;
    for (Choice choice : choices) {
      choice.begin = std::max(choice.begin, lane.free);
      if (choice.begin < best.begin) best = choice;
    }
    return best;
  }

  void Do(int stage, const Choice& choice) {
    Lane& lane = lanes_[stage];
    lane.free = choice.begin + 1;
    End(choice.pass.kind, stage, choice.pass.micro_batch) = lane.free;
    lane.passes.push_back(choice.pass);
    ++(choice.pass.kind == PassKind::kForward    ? lane.forwards
       : choice.pass.kind == PassKind::kBackward ? lane.backwards
                                                 : lane.weights);
  }

  const PipelineShape& shape_;
  std::vector<Lane> lanes_;
  std::vector<std::vector<int64_t>> ends_[3];
};

// Passes of stages that hand on to each other, with what the streams of each have still to do. They
// begin as early as they can, whatever the order in which this takes them.
class Handover {
 public:
  explicit Handover(const std::vector<std::vector<Pass>>& passes, std::vector<PassTimes> times = {},
                    double transfer = 0)
      : times_(std::move(times)), transfer_(transfer), stages_(passes.size()) {
    times_.resize(passes.size(), PassTimes{});
    for (size_t s = 0; s < passes.size(); ++s) {
      Stage& stage = stages_[s];
      stage.passes = passes[s];
      stage.received_at.resize(passes[s].size());
      stage.sent_at.resize(passes[s].size());
      stage.received.resize(passes[s].size());
      stage.sent.resize(passes[s].size());
      for (size_t i = 0; i < passes[s].size(); ++i) {
        if (i == 0) AddReceive(s, 0);
        if (i + 1 < passes[s].size()) AddReceive(s, i + 1);
        AddSend(s, i);
      }
    }
  }

  absl::Status Run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t s = 0; s < stages_.size(); ++s) {
        while (Compute(s)) moved = true;
        for (int stream = 0; stream < 2; ++stream) {
          while (Transfer(s, stream)) moved = true;
        }
      }
    }
    std::vector<std::string> stuck;
    for (size_t s = 0; s < stages_.size(); ++s) {
      const Stage& stage = stages_[s];
      const bool done = stage.computed == stage.passes.size() &&
                        stage.at[0] == stage.streams[0].size() &&
                        stage.at[1] == stage.streams[1].size();
      if (done) continue;
      stuck.push_back(absl::StrCat("stage ", s, " stops at pass ", stage.computed, " of ",
                                   stage.passes.size()));
    }
    if (stuck.empty()) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("pipeline stages wait for each other: ", absl::StrJoin(stuck, ", ")));
  }

  // Of a run that came to its end: by stage.
  std::vector<std::vector<TimedPass>> Timeline() && {
    std::vector<std::vector<TimedPass>> timeline;
    for (Stage& stage : stages_) timeline.push_back(std::move(stage.timed));
    return timeline;
  }

 private:
  static constexpr size_t kUnsent = kPassesUnsent;

  struct Event {
    bool send = false;
    size_t pass = 0;
  };
  struct Stage {
    std::vector<Pass> passes;
    std::vector<Event> streams[2];  // activations, gradients
    size_t at[2] = {0, 0};
    size_t computed = 0;
    std::vector<bool> received, sent;
    std::vector<double> received_at, sent_at;
    double stream_free[2] = {0, 0};
    std::vector<TimedPass> timed;  // those that are computed
  };

  static int StreamOf(const Pass& pass) { return pass.kind == PassKind::kForward ? 0 : 1; }
  bool Receives(size_t s, const Pass& pass) const {
    if (pass.kind == PassKind::kWeights) return false;
    return pass.kind == PassKind::kForward ? s > 0 : s + 1 < stages_.size();
  }
  bool Sends(size_t s, const Pass& pass) const {
    if (pass.kind == PassKind::kWeights) return false;
    return pass.kind == PassKind::kForward ? s + 1 < stages_.size() : s > 0;
  }
  void AddReceive(size_t s, size_t pass) {
    Stage& stage = stages_[s];
    stage.received[pass] = !Receives(s, stage.passes[pass]);
    if (!stage.received[pass]) stage.streams[StreamOf(stage.passes[pass])].push_back({false, pass});
  }
  void AddSend(size_t s, size_t pass) {
    Stage& stage = stages_[s];
    stage.sent[pass] = !Sends(s, stage.passes[pass]);
    if (!stage.sent[pass]) stage.streams[StreamOf(stage.passes[pass])].push_back({true, pass});
  }

  bool Compute(size_t s) {
    Stage& stage = stages_[s];
    const size_t i = stage.computed;
    if (i == stage.passes.size() || !stage.received[i] ||
        (i >= kUnsent && !stage.sent[i - kUnsent])) {
      return false;
    }
    const Pass& pass = stage.passes[i];
    double begin = std::max(EndOf(stage, i), stage.received_at[i]);
    if (i >= kUnsent) begin = std::max(begin, stage.sent_at[i - kUnsent]);
    stage.timed.push_back({pass, begin, begin + times_[s][static_cast<size_t>(pass.kind)]});
    ++stage.computed;
    return true;
  }

  // When the first `passes` are computed.
  static double EndOf(const Stage& stage, size_t passes) {
    return passes == 0 ? 0 : stage.timed[passes - 1].end;
  }

  // The event that a stream has come to, if it could take place now.
  const Event* Ready(size_t s, int stream) const {
    const Stage& stage = stages_[s];
    if (stage.at[stream] == stage.streams[stream].size()) return nullptr;
    const Event& event = stage.streams[stream][stage.at[stream]];
    return stage.computed >= PassesBefore(event) ? &event : nullptr;
  }

  // How many passes have ended when it can take place.
  static size_t PassesBefore(const Event& event) {
    constexpr size_t kRunning = kPassesReceivedAhead - 1;
    return event.send ? event.pass + 1 : event.pass - std::min(event.pass, kRunning);
  }

  bool Transfer(size_t s, int stream) {
    const size_t to = stream == 0 ? s + 1 : s - 1;
    if (to >= stages_.size()) return false;
    const Event* send = Ready(s, stream);
    const Event* receive = Ready(to, stream);
    if (send == nullptr || !send->send || receive == nullptr || receive->send) return false;
    if (stages_[s].passes[send->pass].micro_batch !=
        stages_[to].passes[receive->pass].micro_batch) {
      return false;
    }
    Stage& sender = stages_[s];
    Stage& receiver = stages_[to];
    const double there =
        transfer_ +
        std::max({sender.stream_free[stream], receiver.stream_free[stream],
                  EndOf(sender, PassesBefore(*send)), EndOf(receiver, PassesBefore(*receive))});
    sender.stream_free[stream] = receiver.stream_free[stream] = there;
    sender.sent_at[send->pass] = receiver.received_at[receive->pass] = there;
    sender.sent[send->pass] = true;
    receiver.received[receive->pass] = true;
    ++sender.at[stream];
    ++receiver.at[stream];
    return true;
  }

  std::vector<PassTimes> times_;  // by stage
  const double transfer_;
  std::vector<Stage> stages_;
};

}  // namespace

PipelineShape ShapeOf(const PlanOptions& options) {
  return {options.schedule, options.pipeline, static_cast<int>(options.accumulation)};
}

std::vector<std::vector<Pass>> PassesOfStages(const PipelineShape& shape) {
  std::vector<std::vector<Pass>> passes;
  if (shape.schedule == PipelineSchedule::kZeroBubble) {
    Timetable timetable(shape);
    timetable.Run();
    for (int stage = 0; stage < shape.stages; ++stage) passes.push_back(timetable.passes(stage));
    return passes;
  }
  for (int stage = 0; stage < shape.stages; ++stage) {
    passes.push_back(OneForwardOneBackward(shape, stage));
  }
  return passes;
}

std::vector<Pass> PassesOf(const PipelineShape& shape, int stage) {
  if (shape.schedule == PipelineSchedule::kZeroBubble) return PassesOfStages(shape)[stage];
  return OneForwardOneBackward(shape, stage);
}

std::vector<int> MostInFlight(const PipelineShape& shape) {
  const bool split = shape.schedule == PipelineSchedule::kZeroBubble;
  const PassKind last = split ? PassKind::kWeights : PassKind::kBackward;
  std::vector<int> most;
  for (const std::vector<Pass>& passes : PassesOfStages(shape)) {
    int kept = 0, of_stage = 0;
    for (const Pass& pass : passes) {
      kept += pass.kind == PassKind::kForward ? 1 : pass.kind == last ? -1 : 0;
      of_stage = std::max(of_stage, kept);
    }
    most.push_back(of_stage);
  }
  return most;
}

absl::Status CheckPasses(const std::vector<std::vector<Pass>>& passes) {
  return Handover(passes).Run();
}

absl::Status CheckSchedule(const PipelineShape& shape) {
  return CheckPasses(PassesOfStages(shape));
}

std::vector<std::vector<TimedPass>> TimelineOf(const PipelineShape& shape,
                                               const std::vector<PassTimes>& times,
                                               double transfer) {
  return TimelineOf(PassesOfStages(shape), times, transfer);
}

std::vector<std::vector<TimedPass>> TimelineOf(const std::vector<std::vector<Pass>>& passes,
                                               const std::vector<PassTimes>& times,
                                               double transfer) {
  Handover handover(passes, times, transfer);
  const absl::Status status = handover.Run();
  MP_CHECK(status.ok()) << status;
  return std::move(handover).Timeline();
}

PipelineTime TimeOf(const PipelineShape& shape) {
  const bool split = shape.schedule == PipelineSchedule::kZeroBubble;
  const PassTimes times = {1, split ? 1.0 : 2.0, 1};
  PipelineTime time = {.busy = 3.0 * shape.micro_batches};
  for (const auto& stage :
       TimelineOf(shape, std::vector<PassTimes>(static_cast<size_t>(shape.stages), times))) {
    time.step = std::max(time.step, stage.back().end);
  }
  return time;
}

}  // namespace milepost::plan
