#include "engine/ops/add/add.h"

#include "common/status_macros.h"
#include "engine/ops/backward.h"
#include "engine/ops/op_definition.h"

namespace milepost::ops {
namespace {

using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::ValueId;

absl::Status AddGradient(Backward& backward, const Op& op) {
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  MP_RETURN_IF_ERROR(backward.SetGradient(op, op.inputs[0], dy));
  return backward.SetGradient(op, op.inputs[1], dy);
}

}  // namespace

constinit const OpDefinition kAdd = {.gradient = AddGradient, .cheap = Always};

ValueId Add(graph::Builder& b, absl::string_view name, ValueId residual, ValueId delta) {
  const DType dtype = b.compute_dtype();
  const int64_t width = b.Dimension(name, "residual", residual, 1);
  if (!b.Expect(name, "residual", residual, dtype, {b.rows(), width}) ||
      !b.Expect(name, "delta", delta, dtype, {b.rows(), width})) {
    return kNoValue;
  }
  const ValueId sum = b.AddActivation(name, "", dtype, {b.rows(), width});
  b.AddOp(OpKind::kAdd, {residual, delta}).outputs = {{.value = sum, .may_overwrite = delta}};
  return sum;
}

}  // namespace milepost::ops
