// What an op is to the compiler: a record of plain functions for each kind, which the op's room
// defines (engine/ops/<room>/<room>.cc).
//
//   const OpDefinition& definition = ops::DefinitionOf(op.kind);
//   const Cost cost = definition.cost(graph, op);
//
// A new op is a room and a line in engine/graph/op_kinds.inc for each of its kinds. A kind without
// a definition does not link.
#ifndef MILEPOST_ENGINE_OPS_OP_DEFINITION_H_
#define MILEPOST_ENGINE_OPS_OP_DEFINITION_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/graph/graph.h"
#include "engine/ops/cost.h"
#include "engine/ops/workspace.h"

namespace milepost::ops {

class Backward;

// Emits the backward of a forward op (backward.h).
using GradientRule = absl::Status (*)(Backward& backward, const graph::Op& op);
using CostRule = Cost (*)(const graph::Graph& graph, const graph::Op& op);
// Bytes of scratch; those of its parts are aligned (contract/alignment.h), the whole need not be.
using WorkspaceRule = int64_t (*)(const WorkspaceContext& context);
using CheapRule = bool (*)(const graph::Op& op);

Cost OperandCost(const graph::Graph& graph, const graph::Op& op);  // no product, all operands
Cost NoCost(const graph::Graph& graph, const graph::Op& op);       // counted elsewhere
absl::Status NoGradient(Backward& backward, const graph::Op& op);  // nothing to emit
bool Always(const graph::Op& op);
bool Never(const graph::Op& op);

struct OpDefinition {
  GradientRule gradient = nullptr;  // null: the op has no backward
  CostRule cost = OperandCost;
  // Null: it needs none. Where it multiplies matrices, what lies in front of their scratch.
  WorkspaceRule cpu_workspace = nullptr;
  WorkspaceRule gpu_workspace = nullptr;
  // Its workspace ends with the scratch of the device's matrix products.
  bool multiplies = false;
  // Bound by memory alone: making its outputs once more costs next to nothing beside the products.
  // And gathers of tensor ranks' rows, which cost what they send.
  CheapRule cheap = Never;
  // Statistics of a batch: made once and kept, since making them moves the running ones and
  // exchanges sums with the other ranks.
  bool once = false;
  // Of an op that first adds to the residual stream: the kind of norm that follows. The op's
  // outputs are the sum, then that norm's outputs. The norm's inputs are the sum and this op's
  // inputs from the third on.
  graph::OpKind after_sum = graph::kNoOpKind;
};

const OpDefinition& DefinitionOf(graph::OpKind kind);

// ---- for cost rules ----
// Bytes of every operand, with the first `skip` inputs left out; accumulated outputs twice.
double OperandBytes(const graph::Graph& graph, const graph::Op& op, size_t skip = 0);
// Of a product of `a` and a matrix of so many columns.
double ProductFlops(const graph::Shape& a, int64_t columns);

#define MP_OP(kind, name) extern const OpDefinition k##kind;
#include "engine/graph/op_kinds.inc"
#undef MP_OP

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_OP_DEFINITION_H_
