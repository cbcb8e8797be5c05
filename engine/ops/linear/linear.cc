#include "engine/ops/linear/linear.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/ops/backward.h"
#include "engine/ops/contract/alignment.h"
#include "engine/ops/contract/sums.h"
#include "engine/ops/op_definition.h"

namespace milepost::ops {
namespace {

using graph::Builder;
using graph::Graph;
using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::Output;
using graph::Shape;
using graph::ValueId;

absl::Status LinearGradient(Backward& backward, const Op& op) {
  const ValueId x = op.inputs[0];
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  std::vector<Output> gradients;  // of the weights, then of the biases
  for (size_t i = 1; i < op.inputs.size(); ++i) {
    gradients.push_back(backward.ParameterGradient(op.inputs[i]));
  }
  // The weight's gradient first: then x is dead and dx can take its bytes.
  backward.Emit(op, OpKind::kLinearBackwardWeight, {x, dy}, std::move(gradients));
  if (!backward.Differentiable(x)) return absl::OkStatus();  // patches of an image
  const ValueId dsum = backward.Gradient(x);
  const ValueId dx = backward.NewGradient(x);
  std::vector<ValueId> inputs = {dy};
  inputs.insert(inputs.end(), op.inputs.begin() + 1, op.inputs.begin() + 1 + op.attributes.parts);
  if (op.attributes.divides_columns) {
    const ValueId part = backward.NewGradient(x, " of a tensor rank");
    backward.Emit(op, OpKind::kLinearBackwardInput, std::move(inputs), {{.value = part}});
    backward.Emit(op, OpKind::kTensorReduce, {part, dsum, kNoValue},
                  {{.value = dx, .may_overwrite = part}});
    backward.ReplaceGradient(x, dx);
    return absl::OkStatus();
  }
  if (dsum != kNoValue) inputs.push_back(dsum);
  backward.Emit(op, OpKind::kLinearBackwardInput, std::move(inputs),
                {{.value = dx, .may_overwrite = dsum}});
  backward.ReplaceGradient(x, dx);
  return absl::OkStatus();
}

// kLinear and kLinearBackwardInput.
Cost LinearCost(const Graph& graph, const Op& op) {
  const Shape& x = graph.values[op.inputs[0]].shape;
  return {.flops = ProductFlops(x, graph.values[op.outputs.back().value].shape[1]),
          .bytes = OperandBytes(graph, op)};
}

Cost WeightGradientCost(const Graph& graph, const Op& op) {
  const Shape& dy = graph.values[op.inputs[1]].shape;
  return {.flops = ProductFlops(graph.values[op.inputs[0]].shape, dy[op.attributes.fp8 ? 0 : 1]),
          .bytes = OperandBytes(graph, op)};
}

// A layer of 8 bits on the CPU: both operands in bf16.
int64_t Fp8OperandBytes(const WorkspaceContext& c) {
  const int64_t element = ByteSize(DType::kBf16);
  return LineAligned(element * graph::Elements(c.Shape(0))) +
         LineAligned(element * graph::Elements(c.Shape(1)));
}

// The columns' sums of dy; where several biases do not lie side by side, these in packed form.
int64_t BiasGradientBytes(const WorkspaceContext& c, const Shape& dy) {
  const int64_t biases = static_cast<int64_t>(c.op.outputs.size()) - c.op.attributes.parts;
  if (biases == 0) return 0;
  const int64_t packed = biases > 1 ? LineAligned(dy[1] * ByteSize(DType::kF32)) : 0;
  return LineAligned(kernels::BiasGradientWorkspaceBytes(dy[0], dy[1])) + packed;
}

// Several biases are gathered in front of the product.
int64_t LinearWorkspace(const WorkspaceContext& c) {
  if (c.op.attributes.fp8) return Fp8OperandBytes(c);
  const int64_t biases = static_cast<int64_t>(c.op.inputs.size()) - 1 - c.op.attributes.parts;
  const graph::Value& y = c.graph.values[c.op.outputs.back().value];
  return biases > 1 ? LineAligned(y.shape[1] * ByteSize(y.dtype)) : 0;
}

int64_t BackwardInputWorkspace(const WorkspaceContext& c) {
  return c.op.attributes.fp8 ? Fp8OperandBytes(c) : 0;
}

int64_t BackwardWeightWorkspace(const WorkspaceContext& c) {
  if (!c.op.attributes.fp8) return BiasGradientBytes(c, c.Shape(1));
  const bool biases = c.op.inputs.size() > 4;
  return Fp8OperandBytes(c) + (biases ? BiasGradientBytes(c, c.Shape(4)) : 0);
}

// Of a weight whose rows are [in], or those of a convolution's windows.
Shape RowsShape(const Builder& b, ValueId weight, int64_t out, int64_t in) {
  if (weight != kNoValue) {
    const Shape& own = b.ValueOf(weight).shape;
    if (own.size() == 4 && graph::Elements(own) == out * in) return own;
  }
  return {out, in};
}

int64_t GpuBackwardWeightWorkspace(const WorkspaceContext& c) {
  if (static_cast<int64_t>(c.op.outputs.size()) == c.op.attributes.parts) return 0;
  const Shape& dy = c.Shape(c.op.attributes.fp8 ? 4 : 1);
  return kernels::cuda::BiasGradientWorkspaceBytes(dy[0], dy[1]);
}

}  // namespace

constinit const OpDefinition kLinear = {.gradient = LinearGradient,
                                        .cost = LinearCost,
                                        .cpu_workspace = LinearWorkspace,
                                        .multiplies = true};
constinit const OpDefinition kLinearBackwardInput = {
    .cost = LinearCost, .cpu_workspace = BackwardInputWorkspace, .multiplies = true};
constinit const OpDefinition kLinearBackwardWeight = {.cost = WeightGradientCost,
                                                      .cpu_workspace = BackwardWeightWorkspace,
                                                      .gpu_workspace = GpuBackwardWeightWorkspace,
                                                      .multiplies = true};

ValueId Linear(Builder& b, absl::string_view name, ValueId x, ValueId weight, ValueId bias) {
  const DType dtype = b.compute_dtype();
  const int64_t in = b.Dimension(name, "x", x, 1);
  const int64_t out = b.Dimension(name, "weight", weight, 1);
  if (!b.Expect(name, "x", x, dtype, {b.rows(), in}) ||
      !b.Expect(name, "weight", weight, dtype, {in, out}) ||
      (bias != kNoValue && !b.Expect(name, "bias", bias, dtype, {out}))) {
    return kNoValue;
  }
  const ValueId y = b.AddActivation(name, "", dtype, {b.rows(), out});
  Op& op = b.AddOp(OpKind::kLinear, {x, weight});
  if (bias != kNoValue) op.inputs.push_back(bias);
  op.outputs = {{.value = y}};
  return y;
}

ValueId LinearRows(Builder& b, absl::string_view name, ValueId x, absl::Span<const ValueId> weights,
                   absl::Span<const ValueId> biases, bool never_fp8) {
  const DType dtype = b.compute_dtype();
  const int64_t in = b.Dimension(name, "x", x, 1);
  if (weights.empty() || (!biases.empty() && biases.size() != weights.size())) {
    b.Fail(name, absl::StrCat(weights.size(), " weights and ", biases.size(), " biases"));
    return kNoValue;
  }
  if (!b.Expect(name, "x", x, dtype, {b.rows(), in})) return kNoValue;
  int64_t width = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const int64_t out = b.Dimension(name, "weight", weights[i], 0);
    if (!b.Expect(name, "weight", weights[i], dtype, RowsShape(b, weights[i], out, in)) ||
        (!biases.empty() && !b.Expect(name, "bias", biases[i], dtype, {out}))) {
      return kNoValue;
    }
    width += out;
  }
  const ValueId y = b.AddActivation(name, "", dtype, {b.rows(), width});
  Op& op = b.AddOp(OpKind::kLinear, {x});
  op.inputs.insert(op.inputs.end(), weights.begin(), weights.end());
  op.inputs.insert(op.inputs.end(), biases.begin(), biases.end());
  op.attributes.parts = static_cast<int64_t>(weights.size());
  op.attributes.transposed = true;
  op.attributes.never_fp8 = never_fp8;
  op.outputs = {{.value = y}};
  return y;
}

}  // namespace milepost::ops
