#include "engine/ops/gelu/gelu.h"

#include "common/status_macros.h"
#include "engine/ops/backward.h"
#include "engine/ops/op_definition.h"

namespace milepost::ops {
namespace {

using graph::Builder;
using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::ValueId;

absl::Status GeluGradient(Backward& backward, const Op& op) {
  const ValueId x = op.inputs[0];
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dx = backward.NewGradient(x);
  backward.Emit(op, OpKind::kGeluBackward, {x, dy}, {{.value = dx, .may_overwrite = dy}});
  return backward.SetGradient(op, x, dx);
}

}  // namespace

constinit const OpDefinition kGelu = {.gradient = GeluGradient, .cheap = Always};
constinit const OpDefinition kGeluBackward = {};

ValueId Gelu(Builder& b, absl::string_view name, ValueId x, bool exact) {
  const int64_t width = b.Dimension(name, "x", x, 1);
  if (!b.Expect(name, "x", x, b.compute_dtype(), {b.rows(), width})) return kNoValue;
  const ValueId y = b.AddActivation(name, "", b.compute_dtype(), {b.rows(), width});
  Op& op = b.AddOp(OpKind::kGelu, {x});
  op.attributes.exact = exact;
  op.outputs = {{.value = y, .may_overwrite = x}};
  return y;
}

}  // namespace milepost::ops
