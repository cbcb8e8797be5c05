#include "engine/graph/freeze.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace milepost::graph {
namespace {

// Each writer gets a value of its own: none finds what another left.
void DiscardGradients(Graph& graph, const std::vector<bool>& discarded) {
  for (Op& op : graph.ops) {
    for (Output& output : op.outputs) {
      if (output.value == kNoValue || output.value >= static_cast<ValueId>(discarded.size())) {
        continue;
      }
      if (!discarded[output.value]) continue;
      if (output.optional) {
        output = {};
        continue;
      }
      Value value = graph.values[output.value];
      value.name = "discarded " + value.name;
      value.kind = ValueKind::kDiscarded;
      output.value = static_cast<ValueId>(graph.values.size());
      graph.values.push_back(std::move(value));
    }
  }
}

// `read`: the values that what comes later reads.
bool IsWanted(const Graph& graph, const Output& output, const std::vector<bool>& read) {
  if (output.value == kNoValue) return false;
  const ValueKind kind = graph.values[output.value].kind;
  if (kind == ValueKind::kDiscarded) return false;
  return kind != ValueKind::kActivation || read[output.value];
}

// Drops backward ops whose results nobody reads.
void DropDeadOps(Graph& graph) {
  std::vector<bool> read(graph.values.size(), false);
  std::vector<Op> kept;
  for (auto op = graph.ops.rbegin(); op != graph.ops.rend(); ++op) {
    const auto wanted = [&](const Output& output) { return IsWanted(graph, output, read); };
    const bool dead = op->phase == Phase::kBackward &&
                      std::none_of(op->outputs.begin(), op->outputs.end(), wanted);
    if (dead) continue;
    for (ValueId input : op->inputs) {
      if (input != kNoValue) read[input] = true;
    }
    kept.push_back(std::move(*op));
  }
  std::reverse(kept.begin(), kept.end());
  graph.ops = std::move(kept);
}

}  // namespace

void FreezeParameters(Graph& graph, const std::vector<bool>& frozen) {
  MP_CHECK(frozen.size() == graph.parameters.size());
  std::vector<bool> discarded(graph.values.size(), false);
  for (size_t i = 0; i < frozen.size(); ++i) {
    Parameter& parameter = graph.parameters[i];
    if (!frozen[i] || parameter.gradient == kNoValue) continue;
    discarded[parameter.gradient] = true;
    parameter.gradient = kNoValue;
  }
  DiscardGradients(graph, discarded);
  DropDeadOps(graph);
}

}  // namespace milepost::graph
