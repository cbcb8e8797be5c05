// Takes frozen parameters, which are never updated, out of the backward. Pure: it changes only the
// given graph.
//
//   MP_RETURN_IF_ERROR(ops::AddBackward(graph));
//   graph::FreezeParameters(graph, frozen);  // by parameter
//
// A frozen parameter has no `gradient`. Backward ops that have no use any more are dropped: where
// the lower layers are frozen, the backward ends above them. An op may write a frozen gradient
// beside wanted results. An output that is optional is then left out (a head's: that is a product
// and a matrix as large as the vocabulary). Any other goes to a value of its own
// (ValueKind::kDiscarded), which lives only for this op.
#ifndef MILEPOST_ENGINE_GRAPH_FREEZE_H_
#define MILEPOST_ENGINE_GRAPH_FREEZE_H_

#include <vector>

#include "engine/graph/graph.h"

namespace milepost::graph {

// `frozen` has one entry per parameter. The graph must have its backward, and nothing after it.
void FreezeParameters(Graph& graph, const std::vector<bool>& frozen);

}  // namespace milepost::graph

#endif  // MILEPOST_ENGINE_GRAPH_FREEZE_H_
