#include "engine/runtime/executor/generation_engine.h"

#include <algorithm>

namespace milepost::runtime {
namespace {

int64_t OffsetOf(const plan::StepPlan& plan, const plan::Program& program, graph::ValueId id) {
  const plan::Place& place = program.places[id];
  return plan.buffers[place.buffer].offset + place.offset;
}

}  // namespace

GenerationPlaces GenerationPlaces::Find(const plan::StepPlan& plan, const plan::Program& program) {
  const graph::Graph& graph = program.graph;
  const graph::ValueId tokens = graph.Input("tokens");
  const graph::Value& logits = graph.values[graph.logits];
  return {.rows = graph::Elements(graph.values[tokens].shape),
          .tokens = OffsetOf(plan, program, tokens),
          .positions = OffsetOf(plan, program, graph.Input("positions")),
          .logits = OffsetOf(plan, program, graph.logits),
          .logit_rows = logits.shape[0],
          .logit_row_bytes = logits.shape[1] * ByteSize(logits.dtype)};
}

void GenerationPlaces::Fill(absl::Span<const int32_t> given, int64_t first, char* arena) const {
  auto* to_tokens = reinterpret_cast<int32_t*>(arena + tokens);
  auto* to_positions = reinterpret_cast<int32_t*>(arena + positions);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t filled = std::min(row, static_cast<int64_t>(given.size()) - 1);
    to_tokens[row] = given[filled];
    to_positions[row] = static_cast<int32_t>(first + filled);
  }
}

}  // namespace milepost::runtime
