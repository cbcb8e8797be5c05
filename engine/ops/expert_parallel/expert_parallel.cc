#include "engine/ops/expert_parallel/expert_parallel.h"

#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "engine/ops/backward.h"
#include "engine/ops/op_definition.h"

namespace milepost::ops {
namespace {

using graph::Op;
using graph::OpKind;
using graph::ValueId;

absl::Status RowsToExpertsGradient(Backward& backward, const Op& op) {
  const ValueId y = op.inputs[0];
  MP_ASSIGN_OR_RETURN(const ValueId dz, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dy = backward.NewGradient(y);
  backward.Emit(op, OpKind::kRowsFromExperts, {dz, op.inputs[1], op.outputs[1].value},
                {{.value = dy}});
  return backward.SetGradient(op, y, dy);
}

absl::Status RowsFromExpertsGradient(Backward& backward, const Op& op) {
  const ValueId z = op.inputs[0];
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dz = backward.NewGradient(z);
  backward.Emit(op, OpKind::kRowsToExperts, {dy, op.inputs[1], op.inputs[2]}, {{.value = dz}});
  return backward.SetGradient(op, z, dz);
}

bool AsksForSegments(const Op& op) {
  return op.kind == OpKind::kRowsToExperts && op.inputs.size() == 2;
}

int64_t RowsToExpertsWorkspace(const WorkspaceContext& c) {
  return AsksForSegments(c.op) ? kernels::ExpertRowsWorkspaceBytes(ExpertRowsOf(c.graph, c.op)) : 0;
}

Op ExchangeOp(OpKind kind, std::vector<ValueId> inputs, std::vector<graph::Output> outputs,
              const ExpertRanks& who) {
  Op op = {.kind = kind, .inputs = std::move(inputs), .outputs = std::move(outputs)};
  op.attributes.experts.count = who.experts;
  op.attributes.experts.ranks = who.ranks;
  return op;
}

}  // namespace

constinit const OpDefinition kRowsToExperts = {.gradient = RowsToExpertsGradient,
                                               .cpu_workspace = RowsToExpertsWorkspace};
constinit const OpDefinition kRowsFromExperts = {.gradient = RowsFromExpertsGradient};

Op RowsToExpertsOp(ValueId y, ValueId offsets, ValueId z, ValueId segments,
                   const ExpertRanks& who) {
  return ExchangeOp(OpKind::kRowsToExperts, {y, offsets}, {{.value = z}, {.value = segments}}, who);
}

Op RowsFromExpertsOp(ValueId z, ValueId offsets, ValueId segments, ValueId y,
                     const ExpertRanks& who) {
  return ExchangeOp(OpKind::kRowsFromExperts, {z, offsets, segments}, {{.value = y}}, who);
}

kernels::ExpertRowsShape ExpertRowsOf(const graph::Graph& graph, const Op& op) {
  const bool to_experts = op.kind == OpKind::kRowsToExperts;
  const graph::Value& own = graph.values[to_experts ? op.inputs[0] : op.outputs[0].value];
  return {.ranks = op.attributes.experts.ranks,
          .experts = op.attributes.experts.count,
          .rows = own.shape[0],
          .row_bytes = own.shape[1] * ByteSize(own.dtype)};
}

double EvenRowsBytes(const graph::Graph& graph, const Op& op) {
  const kernels::ExpertRowsShape shape = ExpertRowsOf(graph, op);
  const double others = 1 - 1.0 / static_cast<double>(shape.ranks);
  const int64_t counts = AsksForSegments(op) ? shape.experts * int64_t{sizeof(int32_t)} : 0;
  return others * static_cast<double>(shape.rows * shape.row_bytes + counts);
}

}  // namespace milepost::ops
