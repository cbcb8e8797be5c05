#include "engine/ops/dropout/dropout.h"

#include <utility>
#include <vector>

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

absl::Status DropoutGradient(Backward& backward, const Op& op) {
  const ValueId x = op.inputs[0];
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dsum = backward.Gradient(x);
  const ValueId dx = backward.NewGradient(x);
  std::vector<ValueId> inputs = {dy};
  if (dsum != kNoValue) inputs.push_back(dsum);
  backward.Emit(op, OpKind::kDropout, std::move(inputs), {{.value = dx, .may_overwrite = dy}});
  backward.ReplaceGradient(x, dx);
  return absl::OkStatus();
}

}  // namespace

constinit const OpDefinition kDropout = {.gradient = DropoutGradient};

ValueId Dropout(Builder& b, absl::string_view name, ValueId x, double dropout) {
  const int64_t width = b.Dimension(name, "x", x, 1);
  if (!b.Expect(name, "x", x, b.compute_dtype(), {b.rows(), width})) return kNoValue;
  const ValueId y = b.AddActivation(name, "", b.compute_dtype(), {b.rows(), width});
  Op& op = b.AddOp(OpKind::kDropout, {x});
  op.attributes.dropout = dropout;
  op.attributes.dropout_tag = b.NextDropoutTag(dropout);
  op.outputs = {{.value = y, .may_overwrite = x}};
  return y;
}

}  // namespace milepost::ops
