#include "engine/ops/pooling/pooling.h"

#include "common/status_macros.h"
#include "engine/ops/backward.h"
#include "engine/ops/op_definition.h"

namespace milepost::ops {
namespace {

using graph::Builder;
using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::Shape;
using graph::ValueId;

absl::Status MaxPoolGradient(Backward& backward, const Op& op) {
  const ValueId x = op.inputs[0];
  const ValueId second = backward.TakeSecond(op.outputs[0].value);
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dx = backward.NewGradient(x);
  backward.Emit(op, OpKind::kMaxPoolBackward, {op.outputs[1].value, dy, second}, {{.value = dx}});
  return backward.SetGradient(op, x, dx);
}

absl::Status AveragePoolGradient(Backward& backward, const Op& op) {
  const ValueId x = op.inputs[0];
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dx = backward.NewGradient(x);
  backward.Emit(op, OpKind::kAveragePoolBackward, {dy}, {{.value = dx}});
  return backward.AddGradient(op, x, dx);
}

}  // namespace

constinit const OpDefinition kMaxPool = {.gradient = MaxPoolGradient};
constinit const OpDefinition kMaxPoolBackward = {};
constinit const OpDefinition kAveragePool = {.gradient = AveragePoolGradient};
constinit const OpDefinition kAveragePoolBackward = {};

ValueId MaxPool(Builder& b, absl::string_view name, ValueId x, int64_t kernel,
                const graph::WindowOptions& options) {
  const Shape in = b.ImageShape(name, "x", x);
  if (in.empty()) return kNoValue;
  const Shape out = b.WindowedShape(name, in, kernel, options);
  if (out.empty()) return kNoValue;
  const ValueId y = b.AddActivation(name, "", b.compute_dtype(), out);
  const ValueId winners = b.AddActivation(name, ".winners", DType::kU8, out);
  Op& op = b.AddOp(OpKind::kMaxPool, {x});
  op.attributes.image.kernel = kernel;
  op.attributes.image.stride = options.stride;
  op.attributes.image.padding = options.padding;
  op.outputs = {{.value = y}, {.value = winners}};
  return y;
}

ValueId AveragePool(Builder& b, absl::string_view name, ValueId x) {
  const Shape in = b.ImageShape(name, "x", x);
  if (in.empty()) return kNoValue;
  const ValueId y = b.AddActivation(name, "", b.compute_dtype(), {in[0], in[3]});
  b.AddOp(OpKind::kAveragePool, {x}).outputs = {{.value = y}};
  return y;
}

}  // namespace milepost::ops
