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
  const graph::ValueId texts = graph.Input("texts");
  const graph::Value& logits = graph.values[graph.logits];
  return {.rows = graph::Elements(graph.values[tokens].shape),
          .tokens = OffsetOf(plan, program, tokens),
          .positions = OffsetOf(plan, program, graph.Input("positions")),
          .texts = texts == graph::kNoValue ? -1 : OffsetOf(plan, program, texts),
          .logits = OffsetOf(plan, program, graph.logits),
          .logit_rows = logits.shape[0],
          .logit_row_bytes = logits.shape[1] * ByteSize(logits.dtype)};
}

void GenerationPlaces::Set(int64_t row, int32_t token, int64_t position, int32_t text,
                           char* arena) const {
  const auto set = [&](int64_t input, int64_t value) {
    reinterpret_cast<int32_t*>(arena + input)[row] = static_cast<int32_t>(value);
  };
  set(tokens, token);
  set(positions, position);
  if (texts >= 0) set(texts, text);
}

void GenerationPlaces::Fill(const TextPiece& piece, char* arena) const {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t filled = std::min(row, static_cast<int64_t>(piece.tokens.size()) - 1);
    Set(row, piece.tokens[filled], piece.position + filled, piece.text, arena);
  }
}

void GenerationPlaces::Fill(absl::Span<const TextToken> given, char* arena) const {
  const auto count = static_cast<int64_t>(given.size());
  for (int64_t row = 0; row < rows; ++row) {
    const TextToken& one = given[std::min(row, count - 1)];
    Set(row, one.token, one.position, row < count ? one.text : -1, arena);
  }
}

std::vector<int64_t> GenerationPlaces::Inputs() const {
  if (texts < 0) return {tokens, positions};
  return {tokens, positions, texts};
}

}  // namespace milepost::runtime
