#include "engine/ops/convolution/convolution.h"

#include "common/status_macros.h"
#include "engine/ops/backward.h"
#include "engine/ops/op_definition.h"

namespace milepost::ops {
namespace {

using graph::Builder;
using graph::Elements;
using graph::Graph;
using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::Shape;
using graph::ValueId;

absl::Status ConvolutionGradient(Backward& backward, const Op& op) {
  const ValueId x = op.inputs[0];
  const ValueId w = op.inputs[1];
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  // The weight's gradient first: then x is dead and dx can take its bytes.
  backward.Emit(op, OpKind::kConvolutionBackwardWeights, {x, dy}, {backward.ParameterGradient(w)});
  if (!backward.Differentiable(x)) return absl::OkStatus();
  const ValueId dx = backward.NewGradient(x);
  backward.Emit(op, OpKind::kConvolutionBackwardData, {dy, w}, {{.value = dx}});
  return backward.AddGradient(op, x, dx);
}

// Every element of the output is a sum over the input channels of a window.
double WindowFlops(const Shape& outputs, const Shape& w) {
  return 2 * static_cast<double>(Elements(outputs)) * static_cast<double>(Elements(w) / w[0]);
}

Cost ConvolutionCost(const Graph& graph, const Op& op) {
  return {.flops = WindowFlops(graph.values[op.outputs[0].value].shape,
                               graph.values[op.inputs[1]].shape),
          .bytes = OperandBytes(graph, op)};
}

// dy, w.
Cost DataGradientCost(const Graph& graph, const Op& op) {
  return {.flops = WindowFlops(graph.values[op.inputs[0]].shape, graph.values[op.inputs[1]].shape),
          .bytes = OperandBytes(graph, op)};
}

// x, dy.
Cost FilterGradientCost(const Graph& graph, const Op& op) {
  return {.flops = WindowFlops(graph.values[op.inputs[1]].shape,
                               graph.values[op.outputs[0].value].shape),
          .bytes = OperandBytes(graph, op)};
}

}  // namespace

constinit const OpDefinition kConvolution = {.gradient = ConvolutionGradient,
                                             .cost = ConvolutionCost};
constinit const OpDefinition kConvolutionBackwardData = {.cost = DataGradientCost};
constinit const OpDefinition kConvolutionBackwardWeights = {.cost = FilterGradientCost};

ValueId Convolution(Builder& b, absl::string_view name, ValueId x, ValueId weight,
                    const graph::WindowOptions& options) {
  const Shape in = b.ImageShape(name, "x", x);
  if (in.empty()) return kNoValue;
  const int64_t channels = b.Dimension(name, "weight", weight, 0);
  const int64_t kernel = b.Dimension(name, "weight", weight, 3);
  if (!b.Expect(name, "weight", weight, b.compute_dtype(), {channels, in[3], kernel, kernel})) {
    return kNoValue;
  }
  Shape out = b.WindowedShape(name, in, kernel, options);
  if (out.empty()) return kNoValue;
  out[3] = channels;
  const ValueId y = b.AddActivation(name, "", b.compute_dtype(), out);
  Op& op = b.AddOp(OpKind::kConvolution, {x, weight});
  op.attributes.image.kernel = kernel;
  op.attributes.image.stride = options.stride;
  op.attributes.image.padding = options.padding;
  op.outputs = {{.value = y}};
  return y;
}

}  // namespace milepost::ops
