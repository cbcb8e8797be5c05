// Trades traffic to the host for memory: what blocks keep for their backward waits in host memory.
//
//   AddRecompute(graph, by_block);
//   OffloadActivations(graph);
//
// An activation that the forward makes and the backward reads is copied to the host right after its
// last use in the forward, and back at the begin of the backward of the block before the one that
// needs it first; the backward reads the copy. Left where they are: what is smaller than
// kLeastOffloadBytes, and what the first two blocks of the backward read, which would be fetched at
// once. The copies are of bytes, so every bit of the result stays as it was.
#ifndef MILEPOST_ENGINE_PLAN_PASSES_OFFLOAD_PASS_H_
#define MILEPOST_ENGINE_PLAN_PASSES_OFFLOAD_PASS_H_

#include <cstdint>

#include "engine/graph/graph.h"

namespace milepost::plan {

// Below it a copy takes longer to start than to make.
inline constexpr int64_t kLeastOffloadBytes = 16 << 10;

// `graph` has its backward. Adds values and ops (kCopyToHost, kCopyToDevice).
void OffloadActivations(graph::Graph& graph);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PASSES_OFFLOAD_PASS_H_
