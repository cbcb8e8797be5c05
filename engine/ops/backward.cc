#include "engine/ops/backward.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/ops/op_definition.h"

namespace milepost::ops {
namespace {

using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::Output;
using graph::Value;
using graph::ValueId;

}  // namespace

Backward::Backward(graph::Graph& graph)
    : graph_(graph),
      gradients_(graph.values.size(), kNoValue),
      seconds_(graph.values.size(), kNoValue),
      differentiable_(graph.values.size(), false) {
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    parameters_.emplace(graph.parameters[i].value, i);
    differentiable_[graph.parameters[i].value] = true;
  }
  for (const Op& op : graph.ops) {
    bool any = false;
    for (ValueId input : op.inputs) any |= input != kNoValue && differentiable_[input];
    any = (any && !op.constant) || op.kind == OpKind::kStageReceive;
    for (const Output& output : op.outputs) {
      if (output.value != kNoValue) differentiable_[output.value] = any;
    }
  }
}

absl::StatusOr<ValueId> Backward::RequireGradient(const Op& op, ValueId value) const {
  if (seconds_[value] != kNoValue) return CannotAdd(op, value);
  if (gradients_[value] != kNoValue) return gradients_[value];
  return absl::UnimplementedError(absl::StrCat(Name(op.kind), ": ", graph_.values[value].name,
                                               " does not contribute to the loss"));
}

absl::Status Backward::SetGradient(const Op& op, ValueId value, ValueId gradient) {
  if (gradients_[value] != kNoValue) return CannotAdd(op, value);
  gradients_[value] = gradient;
  return absl::OkStatus();
}

absl::Status Backward::AddGradient(const Op& op, ValueId value, ValueId gradient) {
  if (gradients_[value] == kNoValue) return SetGradient(op, value, gradient);
  if (seconds_[value] != kNoValue) return CannotAdd(op, value);
  seconds_[value] = gradient;
  return absl::OkStatus();
}

ValueId Backward::NewGradient(ValueId of, absl::string_view suffix) {
  Value value = graph_.values[of];
  value.name = absl::StrCat(Gradient(of) == kNoValue ? "grad " : "grad+ ", value.name, suffix);
  value.kind = graph::ValueKind::kActivation;
  graph_.values.push_back(std::move(value));
  return static_cast<ValueId>(graph_.values.size()) - 1;
}

ValueId Backward::NewSums(const Op& op) {
  Value value = graph_.values[op.inputs[1]];  // the mean
  value.name = absl::StrCat("grad sums ", sums_++, " ", graph_.values[op.outputs[0].value].name);
  value.dtype = DType::kF64;
  value.shape = {2, value.shape[0]};
  graph_.values.push_back(std::move(value));
  return static_cast<ValueId>(graph_.values.size()) - 1;
}

Output Backward::ParameterGradient(ValueId parameter) {
  graph::Parameter& entry = graph_.parameters[parameters_.at(parameter)];
  if (entry.gradient != kNoValue) {
    return {.value = entry.gradient, .mode = graph::WriteMode::kAccumulate};
  }
  Value value = graph_.values[parameter];
  value.name = absl::StrCat("grad ", value.name);
  value.dtype = DType::kF32;
  value.kind = graph::ValueKind::kParameterGradient;
  graph_.values.push_back(std::move(value));
  entry.gradient = static_cast<ValueId>(graph_.values.size()) - 1;
  return {.value = entry.gradient, .mode = graph::WriteMode::kAccumulateInStep};
}

void Backward::Emit(const Op& forward, OpKind kind, std::vector<ValueId> inputs,
                    std::vector<Output> outputs) {
  graph_.ops.push_back({.kind = kind,
                        .phase = graph::Phase::kBackward,
                        .block = forward.block,
                        .inputs = std::move(inputs),
                        .outputs = std::move(outputs),
                        .attributes = forward.attributes});
}

absl::Status Backward::CannotAdd(const Op& op, ValueId value) const {
  return absl::UnimplementedError(
      absl::StrCat("gradient of ", graph_.values[value].name, ": ", Name(op.kind),
                   " cannot add to what its other consumers contributed"));
}

absl::Status AddBackward(graph::Graph& graph) {
  const bool ends = !graph.ops.empty() &&
                    (IsLoss(graph.ops.back().kind) || graph.ops.back().kind == OpKind::kStageSend);
  if (!ends) {
    return absl::FailedPreconditionError("the graph does not end in a loss without a backward");
  }
  std::vector<Op> forward = graph.ops;
  std::erase_if(graph.ops, [](const Op& op) { return IsLoss(op.kind); });
  Backward backward(graph);
  for (auto op = forward.rbegin(); op != forward.rend(); ++op) {
    if (op->constant) continue;
    const GradientRule gradient = DefinitionOf(op->kind).gradient;
    if (gradient == nullptr) {
      return absl::UnimplementedError(absl::StrCat(Name(op->kind), " has no backward"));
    }
    MP_RETURN_IF_ERROR(gradient(backward, *op));
  }
  return absl::OkStatus();
}

}  // namespace milepost::ops
