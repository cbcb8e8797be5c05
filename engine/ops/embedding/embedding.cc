#include "engine/ops/embedding/embedding.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/ops/backward.h"
#include "engine/ops/embedding/embedding_contract.h"
#include "engine/ops/op_definition.h"

namespace milepost::ops {
namespace {

using graph::Builder;
using graph::Elements;
using graph::Graph;
using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::Output;
using graph::ValueId;

absl::Status EmbeddingGradient(Backward& backward, const Op& op) {
  MP_ASSIGN_OR_RETURN(const ValueId dx, backward.RequireGradient(op, op.outputs[0].value));
  const Output dwte = backward.ParameterGradient(op.inputs[1]);
  const auto of = [&](ValueId table) {
    return table == kNoValue ? Output{} : backward.ParameterGradient(table);
  };
  const Output dwpe = of(op.inputs[2]);
  const Output dwse = of(op.inputs[4]);
  backward.Emit(op, OpKind::kEmbeddingBackward, {op.inputs[0], dx, op.inputs[3], op.inputs[5]},
                {dwte, dwpe, dwse});
  return absl::OkStatus();
}

double BytesOf(const Graph& graph, ValueId value) {
  return static_cast<double>(Elements(graph.values[value].shape) *
                             ByteSize(graph.values[value].dtype));
}

// Rows read and written. None has more tokens than those of its own.
Cost TokenRowsCost(const Graph& graph, const Op& op) {
  return {.bytes = BytesOf(graph, op.inputs[0]) + 2 * BytesOf(graph, op.outputs[0].value)};
}

// A row of each table read, one written.
Cost EmbeddingCost(const Graph& graph, const Op& op) {
  const int tables = 1 + (op.inputs[2] != kNoValue) + (op.inputs[4] != kNoValue);
  return {.bytes =
              BytesOf(graph, op.inputs[0]) + (tables + 1) * BytesOf(graph, op.outputs[0].value)};
}

// An f32 row of each read and written.
Cost EmbeddingBackwardCost(const Graph& graph, const Op& op) {
  const int tables = 1 + (op.outputs[1].value != kNoValue) + (op.outputs[2].value != kNoValue);
  const ValueId dx = op.inputs[1];
  return {.bytes =
              BytesOf(graph, op.inputs[0]) + BytesOf(graph, dx) +
              2.0 * tables *
                  static_cast<double>(Elements(graph.values[dx].shape) * ByteSize(DType::kF32))};
}

int64_t GpuEmbeddingWorkspace(const WorkspaceContext& c) {
  return kernels::cuda::EmbeddingBackwardWorkspaceBytes(c.Shape(1)[0], c.Shape(1)[1]);
}

}  // namespace

constinit const OpDefinition kTokenRows = {.cost = TokenRowsCost};
constinit const OpDefinition kEmbedding = {.gradient = EmbeddingGradient, .cost = EmbeddingCost};
constinit const OpDefinition kEmbeddingBackward = {.cost = EmbeddingBackwardCost,
                                                   .gpu_workspace = GpuEmbeddingWorkspace};

Op TokenRowsOp(const Op& embedding, ValueId rows) {
  Op op = {.kind = OpKind::kTokenRows,
           .block = embedding.block,
           .inputs = {embedding.inputs[0], embedding.inputs[1]},
           .outputs = {{.value = rows}},
           .attributes = embedding.attributes,
           .constant = true};
  op.attributes.dropout = 0;
  return op;
}

ValueId Embedding(Builder& b, absl::string_view name, ValueId tokens, ValueId wte,
                  const EmbeddingTables& tables, double dropout) {
  const DType dtype = b.compute_dtype();
  const int64_t width = b.Dimension(name, "wte", wte, 1);
  const bool learned = tables.wpe != kNoValue;
  const bool segmented = tables.wse != kNoValue;
  const int64_t positions = learned ? b.Dimension(name, "wpe", tables.wpe, 0) : 0;
  const int64_t segments = segmented ? b.Dimension(name, "wse", tables.wse, 0) : 0;
  if (!b.Expect(name, "tokens", tokens, DType::kI32, {b.rows()}) ||
      !b.Expect(name, "wte", wte, dtype, {b.Dimension(name, "wte", wte, 0), width}) ||
      (learned && !b.Expect(name, "wpe", tables.wpe, dtype, {positions, width})) ||
      (segmented && !b.Expect(name, "wse", tables.wse, dtype, {segments, width})) ||
      !b.ExpectRowsOf(name, "positions", tables.positions) ||
      !b.ExpectRowsOf(name, "segments", tables.segments)) {
    return kNoValue;
  }
  const int64_t needed = b.caches() ? b.options().cached_positions : b.options().sequence;
  if (learned && positions < needed) {
    b.Fail(name, absl::StrCat("sequences of ", needed, " tokens are longer than the ", positions,
                              " positions of wpe"));
  }
  const ValueId out = b.AddActivation(name, "", dtype, {b.rows(), width});
  const ValueId places = learned && b.caches() ? b.Positions() : tables.positions;
  Op& op =
      b.AddOp(OpKind::kEmbedding, {tokens, wte, tables.wpe, places, tables.wse, tables.segments});
  op.attributes.dropout = dropout;
  op.attributes.dropout_tag = b.NextDropoutTag(dropout);
  op.outputs = {{.value = out}};
  return out;
}

}  // namespace milepost::ops
