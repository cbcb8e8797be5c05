#include "engine/ops/patches/patches.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/ops/backward.h"
#include "engine/ops/images/images.h"
#include "engine/ops/op_definition.h"

namespace milepost::ops {
namespace {

using graph::Builder;
using graph::kImageChannels;
using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::Output;
using graph::Shape;
using graph::ValueId;

absl::Status PatchTokensGradient(Backward& backward, const Op& op) {
  MP_ASSIGN_OR_RETURN(const ValueId dx, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId drows = backward.NewGradient(op.inputs[0]);
  Output dcls = backward.ParameterGradient(op.inputs[1]);
  Output dpositions = backward.ParameterGradient(op.inputs[2]);
  dcls.optional = dpositions.optional = true;
  backward.Emit(op, OpKind::kPatchTokensBackward, {dx}, {{.value = drows}, dcls, dpositions});
  return backward.SetGradient(op, op.inputs[0], drows);
}

absl::Status FirstRowsGradient(Backward& backward, const Op& op) {
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dx = backward.NewGradient(op.inputs[0]);
  backward.Emit(op, OpKind::kFirstRowsBackward, {dy}, {{.value = dx}});
  return backward.SetGradient(op, op.inputs[0], dx);
}

// Of all that goes in only the first rows are read.
Cost FirstRowsCost(const graph::Graph& graph, const Op& op) {
  const graph::Value& y = graph.values[op.outputs[0].value];
  return {.bytes = 2.0 * static_cast<double>(graph::Elements(y.shape) * ByteSize(y.dtype))};
}

}  // namespace

constinit const OpDefinition kImagePatches = {.gradient = NoGradient, .cheap = Always};
constinit const OpDefinition kPatchTokens = {.gradient = PatchTokensGradient};
constinit const OpDefinition kPatchTokensBackward = {};
constinit const OpDefinition kFirstRows = {.gradient = FirstRowsGradient, .cost = FirstRowsCost};
constinit const OpDefinition kFirstRowsBackward = {};

ValueId ImagePatches(Builder& b, absl::string_view name, ValueId images, int64_t side,
                     const std::array<double, kImageChannels>& mean,
                     const std::array<double, kImageChannels>& deviation) {
  const int64_t height = b.Dimension(name, "images", images, 1);
  const int64_t width = b.Dimension(name, "images", images, 2);
  if (!b.Expect(name, "images", images, DType::kU8,
                {b.options().batch, height, width, kImageChannels})) {
    return kNoValue;
  }
  if (side < 1 || height % side != 0 || width % side != 0 ||
      b.options().sequence != height / side * (width / side)) {
    b.Fail(name, absl::StrCat("patches of ", side, " x ", side, " pixels, ", b.options().sequence,
                              " of them, are not an image of ", height, " x ", width));
    return kNoValue;
  }
  CheckDeviations(b, name, deviation);
  const ValueId rows =
      b.AddActivation(name, "", b.compute_dtype(), {b.rows(), kImageChannels * side * side});
  Op& op = b.AddOp(OpKind::kImagePatches, {images});
  op.attributes.image.kernel = op.attributes.image.stride = side;
  op.attributes.image.mean = mean;
  op.attributes.image.deviation = deviation;
  op.outputs = {{.value = rows}};
  return rows;
}

ValueId PatchTokens(Builder& b, absl::string_view name, ValueId rows, ValueId cls,
                    ValueId positions) {
  const DType dtype = b.compute_dtype();
  const int64_t width = b.Dimension(name, "rows", rows, 1);
  const int64_t batch = b.options().batch, sequence = b.options().sequence;
  if (!b.Expect(name, "rows", rows, dtype, {batch * (sequence - 1), width}) ||
      !b.Expect(name, "cls", cls, dtype, {1, 1, width}) ||
      !b.Expect(name, "positions", positions, dtype, {1, sequence, width})) {
    return kNoValue;
  }
  const ValueId x = b.AddActivation(name, "", dtype, {b.rows(), width});
  b.AddOp(OpKind::kPatchTokens, {rows, cls, positions}).outputs = {{.value = x}};
  return x;
}

ValueId FirstRows(Builder& b, absl::string_view name, ValueId x) {
  const int64_t rows = b.Dimension(name, "x", x, 0), width = b.Dimension(name, "x", x, 1);
  if (!b.Expect(name, "x", x, b.compute_dtype(), {rows, width})) return kNoValue;
  if (b.options().sequence != 1 || rows % b.rows() != 0) {
    b.Fail(name, absl::StrCat(rows, " rows are not as many of each of ", b.rows(), " images"));
    return kNoValue;
  }
  const ValueId y = b.AddActivation(name, "", b.compute_dtype(), {b.rows(), width});
  b.AddOp(OpKind::kFirstRows, {x}).outputs = {{.value = y}};
  return y;
}

}  // namespace milepost::ops
