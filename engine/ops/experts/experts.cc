#include "engine/ops/experts/experts.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/ops/backward.h"
#include "engine/ops/experts/experts_contract.h"
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

// The gradient dx of x; where tensor ranks divide what reads it, the sum of what each makes of it.
void EmitSummed(Backward& backward, const Op& op, OpKind kind, std::vector<ValueId> inputs,
                ValueId x, ValueId dx) {
  if (!op.attributes.divides_columns) {
    backward.Emit(op, kind, std::move(inputs), {{.value = dx}});
    return;
  }
  const ValueId part = backward.NewGradient(x, " of a tensor rank");
  backward.Emit(op, kind, std::move(inputs), {{.value = part}});
  backward.Emit(op, OpKind::kTensorReduce, {part, kNoValue, kNoValue},
                {{.value = dx, .may_overwrite = part}});
}

absl::Status RouteGradient(Backward& backward, const Op& op) {
  const ValueId logits = op.inputs[0], weights = op.outputs[0].value;
  MP_ASSIGN_OR_RETURN(const ValueId dweights, backward.RequireGradient(op, weights));
  const ValueId before = op.inputs[1], counts = op.outputs[4].value;
  ValueId slopes = kNoValue;
  if (counts != kNoValue) {
    MP_ASSIGN_OR_RETURN(slopes, backward.RequireGradient(op, counts));
  }
  const ValueId dlogits = backward.NewGradient(logits);
  EmitSummed(backward, op, OpKind::kRouteExpertsBackward,
             {logits, weights, op.outputs[1].value, dweights, slopes}, logits, dlogits);
  if (before != kNoValue) MP_RETURN_IF_ERROR(backward.SetGradient(op, before, slopes));
  return backward.SetGradient(op, logits, dlogits);
}

absl::Status DispatchGradient(Backward& backward, const Op& op) {
  const ValueId x = op.inputs[0];
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dx = backward.NewGradient(x);
  EmitSummed(backward, op, OpKind::kDispatchRowsBackward, {dy, op.inputs[1]}, x, dx);
  return backward.SetGradient(op, x, dx);
}

absl::Status ExpertLinearGradient(Backward& backward, const Op& op) {
  const ValueId x = op.inputs[0], offsets = op.inputs[1];
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  std::vector<Output> gradients;
  for (size_t i = 2; i < op.inputs.size(); ++i) {
    gradients.push_back(backward.ParameterGradient(op.inputs[i]));
  }
  // The weights' gradients first, as LinearGradient has it.
  backward.Emit(op, OpKind::kExpertLinearBackwardWeight, {x, dy, offsets}, std::move(gradients));
  const ValueId dx = backward.NewGradient(x);
  std::vector<ValueId> inputs = op.inputs;
  inputs[0] = dy;
  backward.Emit(op, OpKind::kExpertLinearBackwardInput, std::move(inputs), {{.value = dx}});
  return backward.SetGradient(op, x, dx);
}

absl::Status CombineGradient(Backward& backward, const Op& op) {
  const ValueId y = op.inputs[0], weights = op.inputs[1];
  MP_ASSIGN_OR_RETURN(const ValueId dout, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dy = backward.NewGradient(y), dweights = backward.NewGradient(weights);
  backward.Emit(op, OpKind::kCombineRowsBackward, {y, weights, op.inputs[2], dout},
                {{.value = dy, .may_overwrite = y}, {.value = dweights}});
  MP_RETURN_IF_ERROR(backward.SetGradient(op, y, dy));
  return backward.SetGradient(op, weights, dweights);
}

absl::Status BalanceGradient(Backward& backward, const Op& op) {
  return backward.SetGradient(op, op.inputs[1], op.outputs[0].value);
}

int64_t GpuRoutingWorkspace(const WorkspaceContext& c) {
  return kernels::cuda::RoutingWorkspace({.rows = c.Shape(0)[0],
                                          .experts = c.op.attributes.experts.count,
                                          .per_token = c.op.attributes.experts.per_token})
      .Bytes();
}

// Of x: of expert ranks there is room for more rows than come.
Shape EvenRows(const Graph& graph, const Op& op) {
  Shape x = graph.values[op.inputs[0]].shape;
  if (op.attributes.experts.even_rows > 0) x[0] = op.attributes.experts.even_rows;
  return x;
}

// kExpertLinear and kExpertLinearBackwardInput: a row meets the weights of one expert.
Cost ExpertLinearCost(const Graph& graph, const Op& op) {
  return {.flops = ProductFlops(EvenRows(graph, op), graph.values[op.outputs[0].value].shape[1]),
          .bytes = OperandBytes(graph, op)};
}

Cost ExpertWeightCost(const Graph& graph, const Op& op) {
  return {.flops = ProductFlops(EvenRows(graph, op), graph.values[op.inputs[1]].shape[1]),
          .bytes = OperandBytes(graph, op)};
}

// The routes of these rows are the operands of an op called `name`.
bool ExpectRoutes(Builder& b, absl::string_view name, const ExpertRoutes& routes) {
  const int64_t per_token = b.Dimension(name, "weights", routes.weights, 1);
  return b.Expect(name, "weights", routes.weights, DType::kF32, {b.rows(), per_token}) &&
         b.Expect(name, "slots", routes.slots, DType::kI32, {b.rows(), per_token});
}

}  // namespace

// What a row is routed to is decided once, in the forward.
constinit const OpDefinition kRouteExperts = {
    .gradient = RouteGradient, .gpu_workspace = GpuRoutingWorkspace, .once = true};
constinit const OpDefinition kRouteExpertsBackward = {};
constinit const OpDefinition kDispatchRows = {.gradient = DispatchGradient, .cheap = Always};
constinit const OpDefinition kDispatchRowsBackward = {};
constinit const OpDefinition kExpertLinear = {
    .gradient = ExpertLinearGradient, .cost = ExpertLinearCost, .multiplies = true};
constinit const OpDefinition kExpertLinearBackwardInput = {.cost = ExpertLinearCost,
                                                           .multiplies = true};
constinit const OpDefinition kExpertLinearBackwardWeight = {.cost = ExpertWeightCost,
                                                            .multiplies = true};
constinit const OpDefinition kCombineRows = {.gradient = CombineGradient, .cheap = Always};
constinit const OpDefinition kCombineRowsBackward = {};
constinit const OpDefinition kExpertBalance = {.gradient = BalanceGradient, .once = true};

ExpertRoutes RouteExperts(Builder& b, absl::string_view name, ValueId logits,
                          const RouteOptions& options) {
  const int64_t experts = b.Dimension(name, "logits", logits, 1);
  if (!b.Expect(name, "logits", logits, b.compute_dtype(), {b.rows(), experts})) return {};
  if (options.before != kNoValue && !options.counts)
    b.Fail(name, "counts of the layers before would be lost");
  if (experts > kernels::kMostExperts || options.per_token < 1 || options.per_token > experts) {
    b.Fail(name, absl::StrCat(options.per_token, " of ", experts, " experts; at most ",
                              kernels::kMostExperts));
  }
  if (b.rows() > std::numeric_limits<int32_t>::max() / std::max<int64_t>(options.per_token, 1)) {
    b.Fail(name, absl::StrCat(b.rows(), " tokens of ", options.per_token,
                              " experts each are too many at once: choose a smaller "
                              "train.batch.micro or data.sequence_length"));
  }
  const Shape picks = {b.rows(), options.per_token};
  const Shape counts = {experts + 1};
  if (options.before != kNoValue &&
      !b.Expect(name, "counts before", options.before, DType::kF32, counts)) {
    return {};
  }
  const ExpertRoutes routes = {
      .weights = b.AddActivation(name, ".weights", DType::kF32, picks),
      .slots = b.AddActivation(name, ".slots", DType::kI32, picks),
      .offsets = b.AddActivation(name, ".offsets", DType::kI32, counts),
      .counts = options.counts ? b.AddActivation(name, ".counts", DType::kF32, counts) : kNoValue};
  const ValueId chosen = b.AddActivation(name, ".chosen", DType::kI32, picks);
  Op& op = b.AddOp(OpKind::kRouteExperts, {logits, options.before});
  op.attributes.experts = {
      .count = experts, .per_token = options.per_token, .normalize = options.normalize};
  op.attributes.rows_apart = b.caches();
  op.outputs = {{.value = routes.weights},
                {.value = chosen},
                {.value = routes.slots},
                {.value = routes.offsets},
                {.value = routes.counts}};
  return routes;
}

ValueId DispatchRows(Builder& b, absl::string_view name, ValueId x, const ExpertRoutes& routes) {
  const DType dtype = b.compute_dtype();
  const int64_t width = b.Dimension(name, "x", x, 1);
  if (!b.Expect(name, "x", x, dtype, {b.rows(), width}) || !ExpectRoutes(b, name, routes)) {
    return kNoValue;
  }
  const int64_t per_token = b.ValueOf(routes.slots).shape[1];
  const ValueId y = b.AddActivation(name, "", dtype, {b.rows() * per_token, width});
  Op& op = b.AddOp(OpKind::kDispatchRows, {x, routes.slots});
  op.attributes.experts.per_token = per_token;
  op.outputs = {{.value = y}};
  return y;
}

ValueId ExpertLinear(Builder& b, absl::string_view name, ValueId x, const ExpertRoutes& routes,
                     absl::Span<const ValueId> weights, int64_t parts) {
  const DType dtype = b.compute_dtype();
  const int64_t rows = b.Dimension(name, "x", x, 0), in = b.Dimension(name, "x", x, 1);
  const int64_t experts = b.Dimension(name, "offsets", routes.offsets, 0) - 1;
  if (!b.Expect(name, "x", x, dtype, {rows, in}) ||
      !b.Expect(name, "offsets", routes.offsets, DType::kI32, {experts + 1})) {
    return kNoValue;
  }
  if (parts < 1 || static_cast<int64_t>(weights.size()) != experts * parts) {
    b.Fail(name, absl::StrCat(weights.size(), " weights of ", experts, " experts"));
    return kNoValue;
  }
  int64_t width = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(weights.size()); ++i) {
    const int64_t out = b.Dimension(name, "weight", weights[i % parts], 0);
    if (!b.Expect(name, "weight", weights[i], dtype, {out, in})) return kNoValue;
    if (i < parts) width += out;
  }
  const ValueId y = b.AddActivation(name, "", dtype, {rows, width});
  Op& op = b.AddOp(OpKind::kExpertLinear, {x, routes.offsets});
  op.inputs.insert(op.inputs.end(), weights.begin(), weights.end());
  op.attributes.experts.count = experts;
  op.attributes.parts = parts;
  op.attributes.transposed = true;
  // Which rows of a text share an expert's product depends on how the text was cut.
  op.attributes.rows_apart = b.caches();
  op.outputs = {{.value = y}};
  return y;
}

ValueId CombineRows(Builder& b, absl::string_view name, ValueId y, const ExpertRoutes& routes) {
  const DType dtype = b.compute_dtype();
  const int64_t width = b.Dimension(name, "y", y, 1);
  if (!ExpectRoutes(b, name, routes)) return kNoValue;
  const int64_t per_token = b.ValueOf(routes.slots).shape[1];
  if (!b.Expect(name, "y", y, dtype, {b.rows() * per_token, width})) return kNoValue;
  const ValueId out = b.AddActivation(name, "", dtype, {b.rows(), width});
  Op& op = b.AddOp(OpKind::kCombineRows, {y, routes.weights, routes.slots});
  op.attributes.experts.per_token = per_token;
  op.outputs = {{.value = out}};
  return out;
}

ValueId ExpertBalance(Builder& b, absl::string_view name, ValueId targets, ValueId counts,
                      const ExpertLosses& losses) {
  const int64_t experts = b.Dimension(name, "counts", counts, 0) - 1;
  if (!b.Expect(name, "targets", targets, DType::kI32, {b.rows()}) ||
      !b.Expect(name, "counts", counts, DType::kF32, {experts + 1})) {
    return kNoValue;
  }
  const ValueId slopes = b.AddActivation(name, "", DType::kF32, {experts + 1});
  Op& op = b.AddOp(OpKind::kExpertBalance, {targets, counts});
  op.attributes.experts = {
      .count = experts, .balance_loss = losses.balance_loss, .z_loss = losses.z_loss};
  op.outputs = {{.value = slopes}};
  return slopes;
}

}  // namespace milepost::ops
