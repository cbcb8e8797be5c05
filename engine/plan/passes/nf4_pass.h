// Weights in 4 bits (engine/dtype/nf4.h): those of graph::BaseMatrices.
//
//   AddRecompute(graph, by_block);
//   PackWeights(graph, graph::BaseMatrices(graph));
//
// A packed parameter is a value of bytes, u8[Nf4Bytes(elements)]. Right before each product that
// reads it a kUnpackNf4 makes it once more in the compute dtype, in the forward and again in the
// backward: it lives for that product alone. The weights of one layer are unpacked together, so
// that one product can serve them all.
#ifndef MILEPOST_ENGINE_PLAN_PASSES_NF4_PASS_H_
#define MILEPOST_ENGINE_PLAN_PASSES_NF4_PASS_H_

#include <vector>

#include "engine/graph/graph.h"

namespace milepost::plan {

// `packed`: by parameter, the same for all graphs of a model. A graph without parameters stays as
// it is.
void PackWeights(graph::Graph& graph, const std::vector<bool>& packed);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PASSES_NF4_PASS_H_
