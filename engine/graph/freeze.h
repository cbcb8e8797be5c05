// Takes parameters that are never updated out of the backward.
//
//   MP_RETURN_IF_ERROR(ops::AddBackward(graph));
//   graph::FreezeParameters(graph, frozen);  // by parameter
//
// A frozen parameter has no `gradient`. Backward ops that now serve nothing are dropped: where the
// lower layers are frozen the backward ends above them. What an op would still write of a frozen
// gradient, beside what is wanted, goes to a value of its own (ValueKind::kDiscarded) that lives
// for this op only.
#ifndef MILEPOST_ENGINE_GRAPH_FREEZE_H_
#define MILEPOST_ENGINE_GRAPH_FREEZE_H_

#include <vector>

#include "engine/graph/graph.h"

namespace milepost::graph {

// `frozen`: one entry per parameter of the graph, which has its backward and nothing after it.
void FreezeParameters(Graph& graph, const std::vector<bool>& frozen);

}  // namespace milepost::graph

#endif  // MILEPOST_ENGINE_GRAPH_FREEZE_H_
