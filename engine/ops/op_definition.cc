#include "engine/ops/op_definition.h"

#include "common/check.h"

namespace milepost::ops {
namespace {

constexpr const OpDefinition* kDefinitions[] = {
#define MP_OP(kind, name) &k##kind,
#include "engine/graph/op_kinds.inc"
#undef MP_OP
};

double ValueBytes(const graph::Value& value) {
  return static_cast<double>(graph::Elements(value.shape) * ByteSize(value.dtype));
}

}  // namespace

const OpDefinition& DefinitionOf(graph::OpKind kind) {
  MP_CHECK(kind != graph::kNoOpKind);
  return *kDefinitions[static_cast<size_t>(kind)];
}

Cost OpCost(const graph::Graph& graph, const graph::Op& op) {
  return DefinitionOf(op.kind).cost(graph, op);
}

Cost OperandCost(const graph::Graph& graph, const graph::Op& op) {
  return {.bytes = OperandBytes(graph, op)};
}

Cost NoCost(const graph::Graph&, const graph::Op&) { return {}; }
absl::Status NoGradient(Backward&, const graph::Op&) { return absl::OkStatus(); }
bool Always(const graph::Op&) { return true; }
bool Never(const graph::Op&) { return false; }

double OperandBytes(const graph::Graph& graph, const graph::Op& op, size_t skip) {
  double bytes = 0;
  for (size_t i = skip; i < op.inputs.size(); ++i) {
    if (op.inputs[i] != graph::kNoValue) bytes += ValueBytes(graph.values[op.inputs[i]]);
  }
  for (const graph::Output& output : op.outputs) {
    if (output.value == graph::kNoValue) continue;
    const bool also_read = output.mode != graph::WriteMode::kAssign;
    bytes += ValueBytes(graph.values[output.value]) * (also_read ? 2 : 1);
  }
  return bytes;
}

double ProductFlops(const graph::Shape& a, int64_t columns) {
  return 2.0 * static_cast<double>(graph::Elements(a)) * static_cast<double>(columns);
}

}  // namespace milepost::ops
