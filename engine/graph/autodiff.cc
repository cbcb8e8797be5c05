#include "engine/graph/autodiff.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace milepost::graph {
namespace {

// The backward being written. Rules read the gradients of their op's outputs, emit ops, and set
// the gradients of their op's inputs.
class Backward {
 public:
  explicit Backward(Graph& graph)
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
      for (const Output& output : op.outputs) {
        if (output.value != kNoValue) differentiable_[output.value] = any;
      }
    }
  }

  // Whether it depends on a parameter.
  bool Differentiable(ValueId value) const { return differentiable_[value]; }

  // What has been added to the gradient of a forward value so far; kNoValue: nothing.
  ValueId Gradient(ValueId value) const { return gradients_[value]; }

  absl::StatusOr<ValueId> RequireGradient(const Op& op, ValueId value) const {
    if (seconds_[value] != kNoValue) return CannotAdd(op, value);
    if (gradients_[value] != kNoValue) return gradients_[value];
    return absl::UnimplementedError(absl::StrCat(Name(op.kind), ": ", graph_.values[value].name,
                                                 " does not contribute to the loss"));
  }

  absl::Status SetGradient(const Op& op, ValueId value, ValueId gradient) {
    if (gradients_[value] != kNoValue) return CannotAdd(op, value);
    gradients_[value] = gradient;
    return absl::OkStatus();
  }

  // For values whose producer's rule adds the contributions of two consumers itself:
  // RequireGradient fails for the other rules, TakeSecond gives these the second one (kNoValue:
  // there is none).
  absl::Status AddGradient(const Op& op, ValueId value, ValueId gradient) {
    if (gradients_[value] == kNoValue) return SetGradient(op, value, gradient);
    if (seconds_[value] != kNoValue) return CannotAdd(op, value);
    seconds_[value] = gradient;
    return absl::OkStatus();
  }
  ValueId TakeSecond(ValueId value) { return std::exchange(seconds_[value], kNoValue); }

  // For rules whose op has already added Gradient(value) into `gradient`.
  void ReplaceGradient(ValueId value, ValueId gradient) { gradients_[value] = gradient; }

  // A new value for (what is known of) the gradient of `of`.
  ValueId NewGradient(ValueId of) {
    Value value = graph_.values[of];
    value.name = absl::StrCat(Gradient(of) == kNoValue ? "grad " : "grad+ ", value.name);
    value.kind = ValueKind::kActivation;
    graph_.values.push_back(std::move(value));
    return static_cast<ValueId>(graph_.values.size()) - 1;
  }

  // For a batch norm's two sums per channel.
  ValueId NewSums(const Op& op) {
    Value value = graph_.values[op.inputs[1]];  // the mean
    value.name = absl::StrCat("grad sums ", sums_++, " ", graph_.values[op.outputs[0].value].name);
    value.dtype = DType::kF64;
    value.shape = {2, value.shape[0]};
    graph_.values.push_back(std::move(value));
    return static_cast<ValueId>(graph_.values.size()) - 1;
  }

  // An output that adds to a parameter's gradient; its first writer starts the step's sum.
  Output ParameterGradient(ValueId parameter) {
    Parameter& entry = graph_.parameters[parameters_.at(parameter)];
    if (entry.gradient != kNoValue) {
      return {.value = entry.gradient, .mode = WriteMode::kAccumulate};
    }
    Value value = graph_.values[parameter];
    value.name = absl::StrCat("grad ", value.name);
    value.dtype = DType::kF32;
    value.kind = ValueKind::kParameterGradient;
    graph_.values.push_back(std::move(value));
    entry.gradient = static_cast<ValueId>(graph_.values.size()) - 1;
    return {.value = entry.gradient, .mode = WriteMode::kAccumulateInStep};
  }

  void Emit(const Op& forward, OpKind kind, std::vector<ValueId> inputs,
            std::vector<Output> outputs) {
    graph_.ops.push_back({.kind = kind,
                          .phase = Phase::kBackward,
                          .block = forward.block,
                          .inputs = std::move(inputs),
                          .outputs = std::move(outputs),
                          .attributes = forward.attributes});
  }
  Op& LastOp() { return graph_.ops.back(); }

 private:
  absl::Status CannotAdd(const Op& op, ValueId value) const {
    return absl::UnimplementedError(
        absl::StrCat("gradient of ", graph_.values[value].name, ": ", Name(op.kind),
                     " cannot add to what its other consumers contributed"));
  }

  Graph& graph_;
  std::vector<ValueId> gradients_;  // by forward value
  std::vector<ValueId> seconds_;    // by forward value: AddGradient
  std::vector<bool> differentiable_;
  absl::flat_hash_map<ValueId, size_t> parameters_;
  int sums_ = 0;
};

using Rule = absl::Status (*)(Backward&, const Op&);

absl::Status EmbeddingRule(Backward& backward, const Op& op) {
  MP_ASSIGN_OR_RETURN(const ValueId dx, backward.RequireGradient(op, op.outputs[0].value));
  const Output dwte = backward.ParameterGradient(op.inputs[1]);
  const auto of = [&](ValueId table) {
    return table == kNoValue ? Output{} : backward.ParameterGradient(table);
  };
  const Output dwpe = of(op.inputs[2]);
  const Output dwse = of(op.inputs[4]);
  backward.Emit(op, OpKind::kEmbeddingBackward, {op.inputs[0], dx, op.inputs[3], op.inputs[5]},
                {dwte, dwpe, dwse});
  return absl::OkStatus();
}

absl::Status LayerNormRule(Backward& backward, const Op& op) {
  const ValueId x = op.inputs[0];
  const ValueId gamma = op.inputs[1];
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dsum = backward.Gradient(x);
  const ValueId dx = backward.NewGradient(x);
  const Output dgamma = backward.ParameterGradient(gamma);
  const Output dbeta = backward.ParameterGradient(op.inputs[2]);
  backward.Emit(op, OpKind::kLayerNormBackward,
                {x, gamma, op.outputs[1].value, op.outputs[2].value, dy, dsum},
                {{.value = dx, .may_overwrite = dsum != kNoValue ? dsum : dy}, dgamma, dbeta});
  backward.ReplaceGradient(x, dx);
  return absl::OkStatus();
}

absl::Status ResidualLayerNormRule(Backward& backward, const Op& op) {
  const ValueId residual = op.inputs[0];
  const ValueId delta = op.inputs[1];
  const ValueId gamma = op.inputs[2];
  const ValueId sum = op.outputs[0].value;
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[1].value));
  const ValueId dsum = backward.Gradient(sum);
  const ValueId dx = backward.NewGradient(residual);
  // Without dropout the residual and delta have one gradient: the same value serves both.
  const bool dropout = op.attributes.dropout > 0;
  const ValueId ddelta = dropout ? backward.NewGradient(delta) : kNoValue;
  const Output dgamma = backward.ParameterGradient(gamma);
  const Output dbeta = backward.ParameterGradient(op.inputs[3]);
  backward.Emit(op, OpKind::kResidualLayerNormBackward,
                {sum, gamma, op.outputs[2].value, op.outputs[3].value, dy, dsum},
                {{.value = dx, .may_overwrite = dsum != kNoValue ? dsum : dy},
                 {.value = ddelta},
                 dgamma,
                 dbeta});
  MP_RETURN_IF_ERROR(backward.SetGradient(op, residual, dx));
  return backward.SetGradient(op, delta, dropout ? ddelta : dx);
}

absl::Status RmsNormRule(Backward& backward, const Op& op) {
  const ValueId x = op.inputs[0];
  const ValueId gamma = op.inputs[1];
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dsum = backward.Gradient(x);
  const ValueId dx = backward.NewGradient(x);
  const Output dgamma = backward.ParameterGradient(gamma);
  backward.Emit(op, OpKind::kRmsNormBackward, {x, gamma, op.outputs[1].value, dy, dsum},
                {{.value = dx, .may_overwrite = dsum != kNoValue ? dsum : dy}, dgamma});
  backward.ReplaceGradient(x, dx);
  return absl::OkStatus();
}

absl::Status ResidualRmsNormRule(Backward& backward, const Op& op) {
  const ValueId residual = op.inputs[0];
  const ValueId gamma = op.inputs[2];
  const ValueId sum = op.outputs[0].value;
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[1].value));
  const ValueId dsum = backward.Gradient(sum);
  const ValueId dx = backward.NewGradient(residual);
  const Output dgamma = backward.ParameterGradient(gamma);
  backward.Emit(op, OpKind::kRmsNormBackward, {sum, gamma, op.outputs[2].value, dy, dsum},
                {{.value = dx, .may_overwrite = dsum != kNoValue ? dsum : dy}, dgamma});
  MP_RETURN_IF_ERROR(backward.SetGradient(op, residual, dx));
  return backward.SetGradient(op, op.inputs[1], dx);
}

absl::Status LinearRule(Backward& backward, const Op& op) {
  const ValueId x = op.inputs[0];
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  std::vector<Output> gradients;  // of the weights, then of the biases
  for (size_t i = 1; i < op.inputs.size(); ++i) {
    gradients.push_back(backward.ParameterGradient(op.inputs[i]));
  }
  // The weight's gradient first: then x is dead and dx can take its bytes.
  backward.Emit(op, OpKind::kLinearBackwardWeight, {x, dy}, std::move(gradients));
  const ValueId dsum = backward.Gradient(x);
  const ValueId dx = backward.NewGradient(x);
  std::vector<ValueId> inputs = {dy};
  inputs.insert(inputs.end(), op.inputs.begin() + 1, op.inputs.begin() + 1 + op.attributes.parts);
  if (dsum != kNoValue) inputs.push_back(dsum);
  backward.Emit(op, OpKind::kLinearBackwardInput, std::move(inputs),
                {{.value = dx, .may_overwrite = dsum}});
  backward.ReplaceGradient(x, dx);
  return absl::OkStatus();
}

absl::Status DropoutRule(Backward& backward, const Op& op) {
  const ValueId x = op.inputs[0];
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dx = backward.NewGradient(x);
  backward.Emit(op, OpKind::kDropout, {dy}, {{.value = dx, .may_overwrite = dy}});
  return backward.SetGradient(op, x, dx);
}

absl::Status GeluRule(Backward& backward, const Op& op) {
  const ValueId x = op.inputs[0];
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dx = backward.NewGradient(x);
  backward.Emit(op, OpKind::kGeluBackward, {x, dy}, {{.value = dx, .may_overwrite = dy}});
  return backward.SetGradient(op, x, dx);
}

absl::Status SwiGluRule(Backward& backward, const Op& op) {
  const ValueId x = op.inputs[0];
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dx = backward.NewGradient(x);
  backward.Emit(op, OpKind::kSwiGluBackward, {x, dy}, {{.value = dx, .may_overwrite = x}});
  return backward.SetGradient(op, x, dx);
}

absl::Status NoGradientRule(Backward&, const Op&) { return absl::OkStatus(); }

absl::Status RopeRule(Backward& backward, const Op& op) {
  const ValueId qkv = op.inputs[0];
  MP_ASSIGN_OR_RETURN(const ValueId dout, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dqkv = backward.NewGradient(qkv);
  backward.Emit(op, OpKind::kRopeBackward, {dout, op.inputs[1], op.inputs[2]},
                {{.value = dqkv, .may_overwrite = dout}});
  return backward.SetGradient(op, qkv, dqkv);
}

absl::Status QkNormRule(Backward& backward, const Op& op) {
  const ValueId qkv = op.inputs[0];
  MP_ASSIGN_OR_RETURN(const ValueId dout, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dqkv = backward.NewGradient(qkv);
  const Output dgamma_q = backward.ParameterGradient(op.inputs[1]);
  const Output dgamma_k = backward.ParameterGradient(op.inputs[2]);
  backward.Emit(op, OpKind::kQkNormBackward, {qkv, op.inputs[1], op.inputs[2], dout},
                {{.value = dqkv, .may_overwrite = dout}, dgamma_q, dgamma_k});
  return backward.SetGradient(op, qkv, dqkv);
}

absl::Status AttentionRule(Backward& backward, const Op& op) {
  const ValueId qkv = op.inputs[0];
  const ValueId out = op.outputs[0].value;
  MP_ASSIGN_OR_RETURN(const ValueId dout, backward.RequireGradient(op, out));
  const ValueId dqkv = backward.NewGradient(qkv);
  backward.Emit(op, OpKind::kAttentionBackward, {qkv, out, op.outputs[1].value, dout, op.inputs[1]},
                {{.value = dqkv}});
  return backward.SetGradient(op, qkv, dqkv);
}

absl::Status ConvolutionRule(Backward& backward, const Op& op) {
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

// y = BatchNorm(x) + residual, through a ReLU or not, with the statistics of x in training: dx goes
// through those too.
absl::Status BatchNormRule(Backward& backward, const Op& op) {
  const ValueId x = op.inputs[0];
  const ValueId y = op.outputs[0].value;
  const ValueId residual = op.inputs[5];
  const ValueId second = backward.TakeSecond(y);
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, y));
  const bool relu = op.attributes.image.relu;
  // The gradient of what went into the ReLU, where more than dx comes of it or two make it.
  const bool wanted = second != kNoValue || (relu && residual != kNoValue);
  ValueId g = dy;
  if (wanted) g = backward.NewGradient(residual != kNoValue ? residual : y);
  const ValueId sums = backward.NewSums(op);
  const Output dgamma = backward.ParameterGradient(op.inputs[3]);
  const Output dbeta = backward.ParameterGradient(op.inputs[4]);
  std::vector<ValueId> inputs(op.inputs.begin(), op.inputs.begin() + 5);
  inputs.insert(inputs.end(), {dy, second, wanted && relu ? y : kNoValue});
  backward.Emit(op, OpKind::kBatchNormBackwardSums, inputs,
                {{.value = sums},
                 dgamma,
                 dbeta,
                 {.value = wanted ? g : kNoValue, .may_overwrite = wanted ? dy : kNoValue}});
  ValueId reduced = sums;
  if (op.attributes.image.synchronised) {
    reduced = backward.NewSums(op);
    backward.Emit(op, OpKind::kReduceStatistics, {sums},
                  {{.value = reduced, .may_overwrite = sums}});
  }
  const ValueId dx = backward.NewGradient(x);
  inputs.resize(5);
  inputs.insert(inputs.end(), {g, reduced});
  backward.Emit(op, OpKind::kBatchNormBackward, std::move(inputs),
                {{.value = dx, .may_overwrite = x}});
  if (wanted) backward.LastOp().attributes.image.relu = false;
  MP_RETURN_IF_ERROR(backward.SetGradient(op, x, dx));
  return residual == kNoValue ? absl::OkStatus() : backward.AddGradient(op, residual, g);
}

absl::Status MaxPoolRule(Backward& backward, const Op& op) {
  const ValueId x = op.inputs[0];
  const ValueId second = backward.TakeSecond(op.outputs[0].value);
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dx = backward.NewGradient(x);
  backward.Emit(op, OpKind::kMaxPoolBackward, {op.outputs[1].value, dy, second}, {{.value = dx}});
  return backward.SetGradient(op, x, dx);
}

absl::Status AveragePoolRule(Backward& backward, const Op& op) {
  const ValueId x = op.inputs[0];
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dx = backward.NewGradient(x);
  backward.Emit(op, OpKind::kAveragePoolBackward, {dy}, {{.value = dx}});
  return backward.AddGradient(op, x, dx);
}

// Forward and backward in one op, so it takes the forward op's place. Of several heads over x the
// last one's comes first: none of them may lie over x while another still reads it.
absl::Status LmHeadLossRule(Backward& backward, const Op& op) {
  const ValueId x = op.inputs[0];
  const ValueId dsum = backward.Gradient(x);
  const ValueId dx = backward.NewGradient(x);
  const Output dwte = backward.ParameterGradient(op.inputs[1]);
  const ValueId bias = op.inputs[3];
  const Output dbias = bias == kNoValue ? Output{} : backward.ParameterGradient(bias);
  std::vector<ValueId> inputs = op.inputs;
  inputs.push_back(dsum);
  backward.Emit(
      op, OpKind::kLmHeadLossBackward, std::move(inputs),
      {op.outputs[0], {.value = dx, .may_overwrite = dsum != kNoValue ? dsum : x}, dwte, dbias});
  backward.ReplaceGradient(x, dx);
  return absl::OkStatus();
}

// Likewise.
absl::Status ClassifierLossRule(Backward& backward, const Op& op) {
  const ValueId logits = op.inputs[0];
  const ValueId dlogits = backward.NewGradient(logits);
  backward.Emit(op, OpKind::kClassifierLossBackward, op.inputs,
                {op.outputs[0], {.value = dlogits, .may_overwrite = logits}});
  return backward.SetGradient(op, logits, dlogits);
}

struct RuleEntry {
  OpKind kind;
  Rule rule;
};

constexpr std::array<RuleEntry, 23> kRules = {{
    {OpKind::kEmbedding, EmbeddingRule},
    {OpKind::kLayerNorm, LayerNormRule},
    {OpKind::kResidualLayerNorm, ResidualLayerNormRule},
    {OpKind::kRmsNorm, RmsNormRule},
    {OpKind::kResidualRmsNorm, ResidualRmsNormRule},
    {OpKind::kLinear, LinearRule},
    {OpKind::kGelu, GeluRule},
    {OpKind::kDropout, DropoutRule},
    {OpKind::kSwiGlu, SwiGluRule},
    {OpKind::kRopeTable, NoGradientRule},
    {OpKind::kRope, RopeRule},
    {OpKind::kQkNorm, QkNormRule},
    {OpKind::kAttention, AttentionRule},
    {OpKind::kNormalizeImages, NoGradientRule},
    {OpKind::kConvolution, ConvolutionRule},
    {OpKind::kBatchNormSums, NoGradientRule},
    {OpKind::kReduceStatistics, NoGradientRule},
    {OpKind::kBatchNormStatistics, NoGradientRule},
    {OpKind::kBatchNorm, BatchNormRule},
    {OpKind::kMaxPool, MaxPoolRule},
    {OpKind::kAveragePool, AveragePoolRule},
    {OpKind::kLmHeadLoss, LmHeadLossRule},
    {OpKind::kClassifierLoss, ClassifierLossRule},
}};

Rule FindRule(OpKind kind) {
  for (const RuleEntry& entry : kRules) {
    if (entry.kind == kind) return entry.rule;
  }
  return nullptr;
}

}  // namespace

absl::Status AddBackward(Graph& graph) {
  if (graph.ops.empty() || !IsLoss(graph.ops.back().kind)) {
    return absl::FailedPreconditionError("the graph does not end in a loss without a backward");
  }
  std::vector<Op> forward = graph.ops;
  std::erase_if(graph.ops, [](const Op& op) { return IsLoss(op.kind); });
  Backward backward(graph);
  for (auto op = forward.rbegin(); op != forward.rend(); ++op) {
    const Rule rule = FindRule(op->kind);
    if (rule == nullptr) {
      return absl::UnimplementedError(absl::StrCat(Name(op->kind), " has no backward"));
    }
    MP_RETURN_IF_ERROR(rule(backward, *op));
  }
  return absl::OkStatus();
}

}  // namespace milepost::graph
