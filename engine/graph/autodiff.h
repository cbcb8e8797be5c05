// Adds the backward ops of a training graph.
//
//   MP_RETURN_IF_ERROR(graph::AddBackward(graph));  // graph: forward only, ends in a loss
//
// Afterwards kLmHeadLoss has become kLmHeadLossBackward (loss and its gradient in one op), each
// other forward op has its backward ops after it in reverse order, and every parameter that takes
// part has `gradient` set to an f32 value of its shape. Gradients of activations are assigned
// exactly once: where a value has several consumers, the last backward op of them adds the others'
// contribution itself (dsum of the LayerNorm kinds).
//
// What an output may overwrite is declared here too; the memory pass decides.
#ifndef MILEPOST_ENGINE_GRAPH_AUTODIFF_H_
#define MILEPOST_ENGINE_GRAPH_AUTODIFF_H_

#include "absl/status/status.h"
#include "engine/graph/graph.h"

namespace milepost::graph {

// FAILED_PRECONDITION: no loss, or a backward already there. UNIMPLEMENTED: an op kind without a
// rule, or a value with several consumers none of which can add to a gradient.
absl::Status AddBackward(Graph& graph);

}  // namespace milepost::graph

#endif  // MILEPOST_ENGINE_GRAPH_AUTODIFF_H_
