// Pipeline parallelism: a stage's part of a graph, and the step of a stage with all its
// micro-batches (Huang et al., "GPipe", 2019).
//
//   MP_ASSIGN_OR_RETURN(const std::vector<int> stages, StagesOfBlocks(graph, /*stages=*/4));
//   MP_RETURN_IF_ERROR(CutStage(graph, stages, /*stage=*/1));
//   MP_RETURN_IF_ERROR(ops::AddBackward(graph));
//   UnrollPasses(graph, PassesOf(shape, /*stage=*/1));
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

// Leaves of a graph without a backward the ops of one stage. What an earlier stage makes for this
// one is received from the stage before; what a later stage needs is sent to the next one, also
// where it only passes through. What depends on no parameter is made by each stage that reads it.
// All parameters stay in the graph: Parameter::elsewhere and shared say which are this stage's.
// `stage_of_block`: by block, never falling.
void CutStage(graph::Graph& graph, const std::vector<int>& stage_of_block, int stage);

// Puts the ops of a stage's graph, which has a backward, in the order of the passes: those of each
// micro-batch once more, with values of their own, but for what does not depend on it. Gradients
// and losses of all micro-batches add up. What a pass receives is received while the pass before
// it computes.
void UnrollPasses(graph::Graph& graph, const std::vector<Pass>& passes);

// Bounds what is in flight (kPassesUnsent, kPassesReceivedAhead): a pass begins when what an
// earlier one made is sent, and what is received ahead of time takes no bytes before the pass
// before has begun. For ops with accesses and without streams (PlannedOp::after).
void LimitTransfers(Program& program);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PASSES_PIPELINE_PASS_H_
