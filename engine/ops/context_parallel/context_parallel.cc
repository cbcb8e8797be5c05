#include "engine/ops/context_parallel/context_parallel.h"

#include "common/status_macros.h"
#include "engine/ops/backward.h"
#include "engine/ops/op_definition.h"

namespace milepost::ops {
namespace {

using graph::Op;
using graph::OpKind;
using graph::ValueId;

absl::Status HeadsExchangeGradient(Backward& backward, const Op& op) {
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dx = backward.NewGradient(op.inputs[0]);
  const OpKind back =
      op.kind == OpKind::kTokensToHeads ? OpKind::kHeadsToTokens : OpKind::kTokensToHeads;
  backward.Emit(op, back, {dy}, {{.value = dx}});
  return backward.SetGradient(op, op.inputs[0], dx);
}

int64_t HeadsExchangeWorkspace(const WorkspaceContext& c) {
  return kernels::HeadsExchangeWorkspaceBytes(HeadsExchangeOf(c.graph, c.op));
}

Op HeadsExchangeOp(OpKind kind, ValueId x, ValueId y, const graph::Attributes& attention) {
  Op op = {.kind = kind, .inputs = {x}, .outputs = {{.value = y}}};
  op.attributes.batch = attention.batch;
  op.attributes.sequence = attention.sequence;
  op.attributes.heads = attention.heads;
  op.attributes.kv_heads = attention.kv_heads;
  op.attributes.query_parts = attention.query_parts;
  op.attributes.divided = attention.divided;
  return op;
}

}  // namespace

constinit const OpDefinition kTokensToHeads = {.gradient = HeadsExchangeGradient,
                                               .cpu_workspace = HeadsExchangeWorkspace,
                                               .gpu_workspace = HeadsExchangeWorkspace};
constinit const OpDefinition kHeadsToTokens = {.gradient = HeadsExchangeGradient,
                                               .cpu_workspace = HeadsExchangeWorkspace,
                                               .gpu_workspace = HeadsExchangeWorkspace};

Op TokensToHeadsOp(ValueId x, ValueId y, const graph::Attributes& attention) {
  return HeadsExchangeOp(OpKind::kTokensToHeads, x, y, attention);
}

Op HeadsToTokensOp(ValueId x, ValueId y, const graph::Attributes& attention) {
  Op op = HeadsExchangeOp(OpKind::kHeadsToTokens, x, y, attention);
  op.attributes.kv_heads = 0;
  return op;
}

kernels::HeadsExchangeShape HeadsExchangeOf(const graph::Graph& graph, const Op& op) {
  const bool to_heads = op.kind == OpKind::kTokensToHeads;
  const graph::Value& x = graph.values[op.inputs[0]];
  const graph::Value& y = graph.values[op.outputs[0].value];
  const graph::Shape& by_tokens = to_heads ? x.shape : y.shape;
  const graph::Shape& by_heads = to_heads ? y.shape : x.shape;
  const graph::Attributes& a = op.attributes;
  const int64_t head = by_tokens[1] / (a.heads + 2 * a.kv_heads);
  return {.ranks = by_heads[0] / by_tokens[0],
          .query_parts = a.query_parts,
          .batch = a.batch,
          .tokens = by_tokens[0] / a.batch,
          .heads = a.heads,
          .kv_heads = a.kv_heads,
          .head_bytes = head * ByteSize(x.dtype)};
}

}  // namespace milepost::ops
