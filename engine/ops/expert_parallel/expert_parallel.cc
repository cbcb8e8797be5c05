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
  backward.Emit(op, OpKind::kRowsFromExperts, {dz, op.inputs[1], op.inputs[2]}, {{.value = dy}});
  return backward.SetGradient(op, y, dy);
}

absl::Status RowsFromExpertsGradient(Backward& backward, const Op& op) {
  const ValueId z = op.inputs[0];
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dz = backward.NewGradient(z);
  backward.Emit(op, OpKind::kRowsToExperts, {dy, op.inputs[1], op.inputs[2]}, {{.value = dz}});
  return backward.SetGradient(op, z, dz);
}

int64_t SegmentsWorkspace(const WorkspaceContext& c) {
  return 2 * kernels::ExpertCountsBytes(c.op.attributes.experts.count);
}

Op ExchangeOp(OpKind kind, std::vector<ValueId> inputs, std::vector<graph::Output> outputs,
              const ExpertRanks& who) {
  Op op = {.kind = kind, .inputs = std::move(inputs), .outputs = std::move(outputs)};
  op.attributes.experts.count = who.experts;
  op.attributes.experts.ranks = who.ranks;
  return op;
}

}  // namespace

constinit const OpDefinition kExpertSegments = {
    .gradient = NoGradient, .cpu_workspace = SegmentsWorkspace, .gpu_workspace = SegmentsWorkspace};
constinit const OpDefinition kRowsToExperts = {.gradient = RowsToExpertsGradient};
constinit const OpDefinition kRowsFromExperts = {.gradient = RowsFromExpertsGradient};

Op ExpertSegmentsOp(ValueId offsets, ValueId segments, const ExpertRanks& who) {
  return ExchangeOp(OpKind::kExpertSegments, {offsets}, {{.value = segments}}, who);
}

Op RowsToExpertsOp(ValueId y, ValueId offsets, ValueId segments, ValueId z,
                   const ExpertRanks& who) {
  return ExchangeOp(OpKind::kRowsToExperts, {y, offsets, segments}, {{.value = z}}, who);
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

double EvenExchangeBytes(const graph::Graph& graph, const Op& op) {
  const graph::ExpertsAttributes& experts = op.attributes.experts;
  int64_t bytes = kernels::ExpertCountsBytes(experts.count);
  if (IsRowsExchange(op.kind)) {
    const kernels::ExpertRowsShape shape = ExpertRowsOf(graph, op);
    bytes = shape.rows * shape.row_bytes;
  }
  return (1 - 1.0 / static_cast<double>(experts.ranks)) * static_cast<double>(bytes);
}

}  // namespace milepost::ops
