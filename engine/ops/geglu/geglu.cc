#include "engine/ops/geglu/geglu.h"

#include "absl/strings/str_cat.h"
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

absl::Status GeGluGradient(Backward& backward, const Op& op) {
  const ValueId x = op.inputs[0];
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dx = backward.NewGradient(x);
  backward.Emit(op, OpKind::kGeGluBackward, {x, dy}, {{.value = dx, .may_overwrite = x}});
  return backward.SetGradient(op, x, dx);
}

}  // namespace

constinit const OpDefinition kGeGlu = {.gradient = GeGluGradient, .cheap = Always};
constinit const OpDefinition kGeGluBackward = {};

ValueId GeGlu(Builder& b, absl::string_view name, ValueId x) {
  const int64_t width = b.Dimension(name, "x", x, 1);
  if (!b.Expect(name, "x", x, b.compute_dtype(), {b.rows(), width})) return kNoValue;
  if (width % 2 != 0) b.Fail(name, absl::StrCat("width ", width, " is not two halves"));
  const ValueId y = b.AddActivation(name, "", b.compute_dtype(), {b.rows(), width / 2});
  b.AddOp(OpKind::kGeGlu, {x}).outputs = {{.value = y}};
  return y;
}

}  // namespace milepost::ops
