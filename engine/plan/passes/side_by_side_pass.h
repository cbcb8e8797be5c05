// Micro-batches that are trained side by side: while what one of them exchanges with other ranks is
// on its way, another computes (Wang et al., "Domino: Eliminating Communication in LLM Training via
// Generic Tensor Slicing and Overlapping", 2024, does it with parts of one micro-batch).
//
//   MP_RETURN_IF_ERROR(ops::AddBackward(graph));
//   TrainSideBySide(graph, /*micro_batches=*/2, /*blocks_apart=*/false);
//
// Pure.
#ifndef MILEPOST_ENGINE_PLAN_PASSES_SIDE_BY_SIDE_PASS_H_
#define MILEPOST_ENGINE_PLAN_PASSES_SIDE_BY_SIDE_PASS_H_

#include "engine/graph/graph.h"

namespace milepost::plan {

// Of a graph of one micro-batch, one of so many. What lies between two exchanges comes for each
// micro-batch in turn, so that it runs while the exchange of the one before it does. Where a
// micro-batch exchanges twice with little in between, the other's products come in two parts. What
// an op adds to a gradient adds up in the order of the micro-batches. `blocks_apart`: all of them
// end a block before any begins the next one, whose sharded parameters are then gathered once.
void TrainSideBySide(graph::Graph& graph, int micro_batches, bool blocks_apart);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PASSES_SIDE_BY_SIDE_PASS_H_
