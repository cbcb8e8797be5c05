// Which parameters may be kept in fewer bits than the model computes in: of what adapters adapt
// (Parameter::base), the matrices that linear layers of the model's blocks multiply and nothing
// but kDoraNorms reads besides. Not those of the last block, which has the heads, nor the windows
// of a convolution.
//
//   const std::vector<bool> packed = graph::BaseMatrices(graph);  // by parameter
//
// Pure. The graphs of one model agree, whatever they are for.
#ifndef MILEPOST_ENGINE_GRAPH_BASE_MATRICES_H_
#define MILEPOST_ENGINE_GRAPH_BASE_MATRICES_H_

#include <cstddef>
#include <vector>

#include "engine/graph/graph.h"

namespace milepost::graph {

std::vector<bool> BaseMatrices(const Graph& graph);

// Whether input `i` of the op is a weight that a linear layer multiplies, or whose norms it takes.
bool IsLayerWeight(const Op& op, size_t i);

}  // namespace milepost::graph

#endif  // MILEPOST_ENGINE_GRAPH_BASE_MATRICES_H_
