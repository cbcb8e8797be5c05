// Pipeline parallelism: a stage's part of a graph, and the step of a stage with all its
// micro-batches (Huang et al., "GPipe", 2019).
//
//   MP_ASSIGN_OR_RETURN(const std::vector<int> runs, RunsOfBlocks(graph, /*runs=*/4));
//   CutStage(graph, runs, /*stages=*/4, /*stage=*/1);
//   MP_RETURN_IF_ERROR(ops::AddBackward(graph));
//   UnrollPasses(graph, OrderOfStage(shape, /*stage=*/1));
//
// Pure.
#ifndef MILEPOST_ENGINE_PLAN_PASSES_PIPELINE_PASS_H_
#define MILEPOST_ENGINE_PLAN_PASSES_PIPELINE_PASS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/graph/graph.h"
#include "engine/plan/pipeline/schedule.h"
#include "engine/plan/step_plan.h"

namespace milepost::plan {

// Leaves of a graph without a backward the ops of one stage. What earlier blocks make for its own
// is received from the stage before; what later ones need is sent to the next one, also where it
// only passes through. What a run adds to the residual stream is added before it is sent, where no
// dropout comes between. What depends on no parameter is made by each stage that reads it. All
// parameters stay in the graph: Parameter::elsewhere and shared say which are this stage's.
// `run_of_block`: by block, never falling. Run r is that of stage r % stages, and its chunk
// r / stages (Attributes::chunk). Each run receives and sends what is its own: the last stage's
// runs send to the first stage, but for the last one of all.
void CutStage(graph::Graph& graph, const std::vector<int>& run_of_block, int stages, int stage);

// Puts the ops of a stage's graph, which has a backward, in the stage's order: those of each
// micro-batch once more, with values of their own, but for what does not depend on it. Gradients
// and losses of all micro-batches add up.
void UnrollPasses(graph::Graph& graph, const StageOrder& order);

// Bounds what is in flight: a pass begins when what the pass kPassesUnsent before it made is sent,
// and what is received ahead of time takes no bytes before the pass that is computed before it has
// ended. For ops without streams (PlannedOp::after).
void LimitTransfers(Program& program);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PASSES_PIPELINE_PASS_H_
