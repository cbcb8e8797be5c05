#include "engine/ops/lora/lora.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/ops/backward.h"
#include "engine/ops/op_definition.h"

namespace milepost::ops {
namespace {

using graph::Graph;
using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::Output;
using graph::ValueId;

absl::Status LoraGradient(Backward& backward, const Op& op) {
  const ValueId base = op.inputs[0], h = op.inputs[1];
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  const std::vector<ValueId> weights(op.inputs.begin() + 2, op.inputs.end());
  std::vector<Output> gradients;
  for (const ValueId weight : weights) gradients.push_back(backward.ParameterGradient(weight));
  backward.Emit(op, OpKind::kLoraBackwardWeight, {h, dy}, std::move(gradients));
  const ValueId dh = backward.NewGradient(h);
  std::vector<ValueId> inputs = {dy};
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  backward.Emit(op, OpKind::kLoraBackwardInput, std::move(inputs), {{.value = dh}});
  MP_RETURN_IF_ERROR(backward.SetGradient(op, h, dh));
  return backward.SetGradient(op, base, dy);
}

// Each column of h meets the columns of one weight.
template <typename Weights, typename IdOf>
double AdapterFlops(const Graph& graph, const Op& op, const Weights& weights, IdOf id_of) {
  const auto rows = static_cast<double>(graph.values[op.inputs[0]].shape[0]);
  double flops = 0;
  for (const auto& weight : weights) {
    flops += 2 * rows * static_cast<double>(graph::Elements(graph.values[id_of(weight)].shape));
  }
  return flops;
}

// kLora and kLoraBackwardInput.
Cost LoraCost(const Graph& graph, const Op& op) {
  const auto weights = absl::MakeConstSpan(op.inputs).last(op.attributes.lora.adapters);
  return {.flops = AdapterFlops(graph, op, weights, [](ValueId id) { return id; }),
          .bytes = OperandBytes(graph, op)};
}

Cost LoraWeightCost(const Graph& graph, const Op& op) {
  return {.flops = AdapterFlops(graph, op, op.outputs,
                                [](const Output& output) { return output.value; }),
          .bytes = OperandBytes(graph, op)};
}

}  // namespace

constinit const OpDefinition kLora = {
    .gradient = LoraGradient, .cost = LoraCost, .multiplies = true};
constinit const OpDefinition kLoraBackwardInput = {.cost = LoraCost, .multiplies = true};
constinit const OpDefinition kLoraBackwardWeight = {.cost = LoraWeightCost, .multiplies = true};

ValueId Lora(graph::Builder& b, absl::string_view name, ValueId base, ValueId h,
             absl::Span<const ValueId> weights, absl::Span<const int64_t> columns) {
  const DType dtype = b.compute_dtype();
  if (weights.empty() || weights.size() > graph::kMostAdapters ||
      weights.size() != columns.size()) {
    b.Fail(name, absl::StrCat(weights.size(), " weights and ", columns.size(), " columns"));
    return kNoValue;
  }
  const auto adapters = static_cast<int64_t>(weights.size());
  const int64_t width = b.Dimension(name, "base", base, 1);
  const int64_t rank = b.Dimension(name, "weight", weights[0], 1);
  if (!b.Expect(name, "base", base, dtype, {b.rows(), width}) ||
      !b.Expect(name, "h", h, dtype, {b.rows(), adapters * rank})) {
    return kNoValue;
  }
  int64_t end = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const int64_t out = b.Dimension(name, "weight", weights[i], 0);
    if (!b.Expect(name, "weight", weights[i], dtype, {out, rank})) return kNoValue;
    if (columns[i] < end || columns[i] + out > width) {
      b.Fail(name, absl::StrCat("columns from ", columns[i], " on are not free"));
      return kNoValue;
    }
    end = columns[i] + out;
  }
  const ValueId y = b.AddActivation(name, "", dtype, {b.rows(), width});
  Op& op = b.AddOp(OpKind::kLora, {base, h});
  op.inputs.insert(op.inputs.end(), weights.begin(), weights.end());
  op.attributes.lora.adapters = adapters;
  std::copy(columns.begin(), columns.end(), op.attributes.lora.columns.begin());
  op.outputs = {{.value = y, .may_overwrite = base}};
  return y;
}

}  // namespace milepost::ops
