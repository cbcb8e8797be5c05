// The order in which the stages of a pipeline work on a step's micro-batches.
//
//   const PipelineShape shape = {PipelineSchedule::kOneForwardOneBackward, /*stages=*/4,
//                                /*micro_batches=*/8};
//   MP_RETURN_IF_ERROR(CheckSchedule(shape));
//   const std::vector<Pass> passes = PassesOf(shape, /*stage=*/1);
//
// kOneForwardOneBackward (Narayanan et al., "PipeDream-Flush", 2021): a stage begins with as many
// forwards as there are stages behind it, then does a forward and a backward in turn. So stage s
// keeps what the backward needs of at most stages - s micro-batches.
//
// kZeroBubble (Qi et al., "Zero Bubble Pipeline Parallelism", 2023): the backward of a micro-batch
// is in two parts. The first makes the gradient that the stage before waits for; the second those
// of the weights, which fills what would be waiting. A stage does what it can begin first, and
// keeps at most stages + 1 micro-batches: one more than the first stage does otherwise. With one
// less the bubble is twice as large.
//
// Pure.
#ifndef MILEPOST_ENGINE_PLAN_PIPELINE_SCHEDULE_H_
#define MILEPOST_ENGINE_PLAN_PIPELINE_SCHEDULE_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/plan/step_plan.h"

namespace milepost::plan {

enum class PassKind : uint8_t {
  kForward,
  kBackward,  // all of it; kZeroBubble: what the stage before waits for
  kWeights,   // kZeroBubble: the rest
};

// What a stage does with one micro-batch at a time.
struct Pass {
  PassKind kind = PassKind::kForward;
  int micro_batch = 0;
  bool operator==(const Pass&) const = default;
};

struct PipelineShape {
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  int stages = 1;
  int micro_batches = 1;
};

PipelineShape ShapeOf(const PlanOptions& options);

std::vector<Pass> PassesOf(const PipelineShape& shape, int stage);
// By stage.
std::vector<std::vector<Pass>> PassesOfStages(const PipelineShape& shape);

// By stage: of how many micro-batches it keeps something for the backward, at its fullest.
std::vector<int> MostInFlight(const PipelineShape& shape);

// That every stage gets to its end. INTERNAL with what waits for what otherwise.
absl::Status CheckSchedule(const PipelineShape& shape);
// The same of any passes, by stage. A stage computes pass after pass; beside that, on a stream for
// each direction, it sends what a pass has made and receives what the next one needs. A transfer
// takes place when both ends have come to it, and a pass begins when what it needs has come, and
// what the pass kPassesUnsent before it made has gone.
absl::Status CheckPasses(const std::vector<std::vector<Pass>>& passes);

// How many passes may have begun whose results are not all handed on, the one that begins included.
// With fewer a zero-bubble stage waits for its peers more often; with more it keeps more results.
inline constexpr int kPassesUnsent = 3;
// What a pass receives comes when the pass so many before it has ended.
inline constexpr int kPassesReceivedAhead = 2;

// How long each kind of pass takes, in any unit: by PassKind.
using PassTimes = std::array<double, 3>;
// A pass and when it begins and ends.
struct TimedPass {
  Pass pass;
  double begin = 0;
  double end = 0;
};
// Of every stage, where all begin as early as they can. `times`: by stage. `transfer`: for how long
// what one stage hands to another is on its way.
std::vector<std::vector<TimedPass>> TimelineOf(const PipelineShape& shape,
                                               const std::vector<PassTimes>& times,
                                               double transfer = 0);
// The same of passes that PassesOfStages() has made. To find those of a long zero-bubble step takes
// longer than this.
std::vector<std::vector<TimedPass>> TimelineOf(const std::vector<std::vector<Pass>>& passes,
                                               const std::vector<PassTimes>& times,
                                               double transfer);

// How long a step takes, and how long a stage computes in it, where a forward takes as long as
// either half of a backward and transfers take no time.
struct PipelineTime {
  double step = 0;
  double busy = 0;  // of the stage that computes longest
  double idle_share() const { return step > 0 ? 1 - busy / step : 0; }
};
PipelineTime TimeOf(const PipelineShape& shape);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PIPELINE_SCHEDULE_H_
