#include "engine/ops/scale/scale.h"

#include "common/status_macros.h"
#include "engine/ops/backward.h"
#include "engine/ops/op_definition.h"

namespace milepost::ops {
namespace {

using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::ValueId;

absl::Status ScaleGradient(Backward& backward, const Op& op) {
  const ValueId x = op.inputs[0];
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dx = backward.NewGradient(x);
  backward.Emit(op, OpKind::kScale, {dy}, {{.value = dx, .may_overwrite = dy}});
  return backward.SetGradient(op, x, dx);
}

}  // namespace

constinit const OpDefinition kScale = {.gradient = ScaleGradient, .cheap = Always};

ValueId Scale(graph::Builder& b, absl::string_view name, ValueId x, double scale) {
  const int64_t width = b.Dimension(name, "x", x, 1);
  if (!b.Expect(name, "x", x, b.compute_dtype(), {b.rows(), width})) return kNoValue;
  const ValueId y = b.AddActivation(name, "", b.compute_dtype(), {b.rows(), width});
  Op& op = b.AddOp(OpKind::kScale, {x});
  op.attributes.scale = scale;
  op.outputs = {{.value = y, .may_overwrite = x}};
  return y;
}

}  // namespace milepost::ops
