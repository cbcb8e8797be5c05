// Trades arithmetic for memory: drops activations after the forward and makes them once more in the
// backward, by the same ops on the same inputs, so every bit of the result stays as it was (dropout
// masks are keyed by position, not by when they are drawn).
//
//   MP_RETURN_IF_ERROR(ops::AddBackward(graph));
//   AddRecompute(graph, std::vector<Recompute>(graph.blocks.size(), Recompute::kSelective));
//
// Replayed ops stand right before the backward op that first needs one of their outputs, in
// Phase::kRecompute and in their own block. What is kept of a block:
//   kSelective: everything but the outputs of norms, of sums with them, of GELU and of SwiGLU, and
//               the rows that tensor ranks gather
//   kFull:      what other blocks made, and the residual stream where a block takes it up
// The last block is never replayed: its backward follows its forward at once.
#ifndef MILEPOST_ENGINE_PLAN_PASSES_RECOMPUTE_PASS_H_
#define MILEPOST_ENGINE_PLAN_PASSES_RECOMPUTE_PASS_H_

#include <cstdint>
#include <vector>

#include "engine/plan/step_plan.h"

namespace milepost::plan {

// For each block what is dropped of what it makes: kNone, kSelective or kFull.
void AddRecompute(graph::Graph& graph, const std::vector<Recompute>& by_block);

// Of each block: bytes of what it makes in the forward and something later than that reads.
std::vector<int64_t> KeptBytes(const graph::Graph& graph);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PASSES_RECOMPUTE_PASS_H_
