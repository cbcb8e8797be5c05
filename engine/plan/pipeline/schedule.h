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
// kInterleaved (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters
// Using Megatron-LM", 2021): a stage has several runs of blocks (chunks), and a micro-batch comes
// through all stages once for each of them, from the last stage to the first again. As many
// micro-batches as there are stages go through one run, then through the next. So the first ones
// are at the last stage's last run sooner, and what the stages wait for is divided by the chunks.
// Stage s keeps at most (chunks - 1) * stages + 2 * (stages - 1 - s) + 1 passes of a chunk.
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
  int chunk = 0;  // kInterleaved: through which of the stage's runs of blocks
  bool operator==(const Pass&) const = default;
};

struct PipelineShape {
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  int stages = 1;
  int micro_batches = 1;
  int chunks = 1;  // kInterleaved, with at least two stages: runs of blocks of each stage
};

PipelineShape ShapeOf(const PlanOptions& options);

std::vector<Pass> PassesOf(const PipelineShape& shape, int stage);
// By stage.
std::vector<std::vector<Pass>> PassesOfStages(const PipelineShape& shape);

// A stage receives what a pass needs, computes it, and sends what it has made.
struct StageStep {
  enum Kind : uint8_t { kReceive, kCompute, kSend };
  Kind kind = kCompute;
  int pass = 0;  // index among the stage's passes
  bool operator==(const StageStep&) const = default;
};
// A stage's program. It computes pass after pass; beside that, on a stream for each direction, it
// sends and receives in the order of the steps. What is received takes no bytes before the pass
// that is computed before it in this order has ended. A step that has nothing to send or receive
// does nothing.
struct StageOrder {
  std::vector<Pass> passes;
  std::vector<StageStep> steps;
};
// By stage. What a pass needs is received while the one before computes; of an interleaved
// pipeline also sooner, where it has been made.
std::vector<StageOrder> OrdersOf(const PipelineShape& shape);
StageOrder OrderOfStage(const PipelineShape& shape, int stage);

// By stage: of how many forwards it keeps something for the backward, at its fullest.
std::vector<int> MostInFlight(const PipelineShape& shape);

// When a stage begins to receive: as its order has it, or no sooner than something waits for what
// comes, or is behind it on its stream. So does a host that has to wait within passes
// (runtime/gpu/device/host_numbers.h), and enqueues nothing meanwhile.
enum class Receives : uint8_t { kAhead, kWhenNeeded };

// That every stage gets to its end. INTERNAL with what waits for what otherwise.
absl::Status CheckSchedule(const PipelineShape& shape, Receives receives = Receives::kAhead);
// The same of any orders, by stage. A transfer takes place when both ends have come to it, and a
// pass begins when what it needs has come, and what the pass kPassesUnsent before it made has gone.
absl::Status CheckOrders(const std::vector<StageOrder>& orders,
                         Receives receives = Receives::kAhead);

// How many passes may have begun whose results are not all handed on, the one that begins included.
// With fewer a zero-bubble stage waits for its peers more often; with more it keeps more results.
inline constexpr int kPassesUnsent = 3;

// How long each kind of pass takes, in any unit: by PassKind.
using PassTimes = std::array<double, 3>;
// A pass and when it begins and ends.
struct TimedPass {
  Pass pass;
  double begin = 0;
  double end = 0;
};
// Of every stage, where all begin as early as they can. `times`: by run of blocks, of which run
// c * stages + s is chunk c of stage s; so by stage where there is one chunk. `transfer`: for how
// long what one stage hands to another is on its way.
std::vector<std::vector<TimedPass>> TimelineOf(const PipelineShape& shape,
                                               const std::vector<PassTimes>& times,
                                               double transfer = 0);
// The same of what OrdersOf() has made. To find the orders of a long zero-bubble step takes longer
// than this.
std::vector<std::vector<TimedPass>> TimelineOf(const std::vector<StageOrder>& orders,
                                               const std::vector<PassTimes>& times,
                                               double transfer);

// How long a step takes, and how long a stage computes in it, where a forward through all chunks
// takes 1, and as long as either half of a backward.
struct PipelineTime {
  double step = 0;
  double busy = 0;  // of the stage that computes longest
  double idle_share() const { return step > 0 ? 1 - busy / step : 0; }
};
PipelineTime TimeOf(const PipelineShape& shape, double transfer = 0);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PIPELINE_SCHEDULE_H_
