#include "engine/graph/base_matrices.h"

namespace milepost::graph {

bool IsLayerWeight(const Op& op, size_t i) {
  if (op.kind == OpKind::kDoraNorms) return i == 0;
  const bool layer = op.kind == OpKind::kLinear || op.kind == OpKind::kLinearBackwardInput;
  return layer && i >= 1 && i < 1 + static_cast<size_t>(op.attributes.parts);
}

std::vector<bool> BaseMatrices(const Graph& graph) {
  std::vector<bool> multiplied(graph.values.size(), false);
  std::vector<bool> read_otherwise(graph.values.size(), false);
  const int last = static_cast<int>(graph.blocks.size()) - 1;
  for (const Op& op : graph.ops) {
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (op.inputs[i] == kNoValue) continue;
      const bool weight = IsLayerWeight(op, i) && op.block != last;
      (weight ? multiplied : read_otherwise)[op.inputs[i]] = true;
    }
  }
  std::vector<bool> found;
  for (const Parameter& parameter : graph.parameters) {
    found.push_back(parameter.base && multiplied[parameter.value] &&
                    !read_otherwise[parameter.value] &&
                    graph.values[parameter.value].shape.size() == 2);
  }
  return found;
}

}  // namespace milepost::graph
