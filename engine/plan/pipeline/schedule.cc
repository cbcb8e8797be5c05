#include "engine/plan/pipeline/schedule.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "common/check.h"
#include "engine/plan/pipeline/handover.h"
#include "engine/plan/pipeline/interleaved.h"

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

// What the next pass needs is received while a pass computes.
StageOrder UsualOrder(std::vector<Pass> passes) {
  StageOrder order = {.passes = std::move(passes)};
  const auto count = static_cast<int>(order.passes.size());
  for (int i = 0; i < count; ++i) {
    if (i == 0) order.steps.push_back({StageStep::kReceive, 0});
    if (i + 1 < count) order.steps.push_back({StageStep::kReceive, i + 1});
    order.steps.push_back({StageStep::kCompute, i});
    order.steps.push_back({StageStep::kSend, i});
  }
  return order;
}

}  // namespace

PipelineShape ShapeOf(const PlanOptions& options) {
  return {options.schedule, options.pipeline, static_cast<int>(options.accumulation),
          options.chunks};
}

std::vector<std::vector<Pass>> PassesOfStages(const PipelineShape& shape) {
  std::vector<std::vector<Pass>> passes;
  if (shape.schedule == PipelineSchedule::kZeroBubble) {
    Timetable timetable(shape);
    timetable.Run();
    for (int stage = 0; stage < shape.stages; ++stage) passes.push_back(timetable.passes(stage));
    return passes;
  }
  for (int stage = 0; stage < shape.stages; ++stage) passes.push_back(PassesOf(shape, stage));
  return passes;
}

std::vector<Pass> PassesOf(const PipelineShape& shape, int stage) {
  switch (shape.schedule) {
    case PipelineSchedule::kOneForwardOneBackward:
      return OneForwardOneBackward(shape, stage);
    case PipelineSchedule::kZeroBubble:
      return PassesOfStages(shape)[static_cast<size_t>(stage)];
    case PipelineSchedule::kInterleaved:
      return InterleavedPasses(shape, stage);
  }
  return {};
}

StageOrder OrderOfStage(const PipelineShape& shape, int stage) {
  if (shape.schedule == PipelineSchedule::kInterleaved) {
    return std::move(InterleavedOrders(shape)[static_cast<size_t>(stage)]);
  }
  return UsualOrder(PassesOf(shape, stage));
}

std::vector<StageOrder> OrdersOf(const PipelineShape& shape) {
  if (shape.schedule == PipelineSchedule::kInterleaved) return InterleavedOrders(shape);
  std::vector<StageOrder> orders;
  for (std::vector<Pass>& passes : PassesOfStages(shape)) {
    orders.push_back(UsualOrder(std::move(passes)));
  }
  return orders;
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

absl::Status CheckOrders(const std::vector<StageOrder>& orders, Receives receives) {
  Handover handover(orders);
  if (receives == Receives::kWhenNeeded) handover.ReceiveWhenNeeded();
  return handover.Run();
}

absl::Status CheckSchedule(const PipelineShape& shape, Receives receives) {
  return CheckOrders(OrdersOf(shape), receives);
}

std::vector<std::vector<TimedPass>> TimelineOf(const PipelineShape& shape,
                                               const std::vector<PassTimes>& times,
                                               double transfer) {
  return TimelineOf(OrdersOf(shape), times, transfer);
}

std::vector<std::vector<TimedPass>> TimelineOf(const std::vector<StageOrder>& orders,
                                               const std::vector<PassTimes>& times,
                                               double transfer) {
  Handover handover(orders, times, transfer);
  const absl::Status status = handover.Run();
  MP_CHECK(status.ok()) << status;
  return std::move(handover).Timeline();
}

PipelineTime TimeOf(const PipelineShape& shape, double transfer) {
  const bool split = shape.schedule == PipelineSchedule::kZeroBubble;
  const double part = 1.0 / shape.chunks;  // of a stage's blocks
  const PassTimes times = {part, (split ? 1.0 : 2.0) * part, part};
  const size_t runs = static_cast<size_t>(shape.stages) * static_cast<size_t>(shape.chunks);
  PipelineTime time = {.busy = 3.0 * shape.micro_batches};
  for (const auto& stage : TimelineOf(shape, std::vector<PassTimes>(runs, times), transfer)) {
    time.step = std::max(time.step, stage.back().end);
  }
  return time;
}

}  // namespace milepost::plan
