#include "engine/ops/lm_head/lm_head.h"

#include <array>
#include <initializer_list>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/ops/backward.h"
#include "engine/ops/lm_head/lm_head_workspace.h"
#include "engine/ops/op_definition.h"

namespace milepost::ops {
namespace {

using graph::Builder;
using graph::Elements;
using graph::Graph;
using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::Output;
using graph::ValueId;

// What both heads' backward ops make. Of a frozen weight they make no gradient. Of several heads
// over x the last one's comes first: none may lie over x while another still reads it.
void EmitHeadBackward(Backward& backward, const Op& op, OpKind kind, const Output& sums,
                      std::initializer_list<ValueId> more_inputs) {
  const auto gradient = [&](ValueId parameter) {
    Output output = parameter == kNoValue ? Output{} : backward.ParameterGradient(parameter);
    output.optional = true;
    return output;
  };
  const ValueId x = op.inputs[0];
  const ValueId dsum = backward.Gradient(x);
  const ValueId dx = backward.NewGradient(x);
  std::vector<ValueId> inputs = op.inputs;
  inputs.push_back(dsum);
  inputs.insert(inputs.end(), more_inputs);
  backward.Emit(op, kind, std::move(inputs),
                {sums,
                 {.value = dx, .may_overwrite = dsum != kNoValue ? dsum : x},
                 gradient(op.inputs[1]),
                 gradient(op.inputs[3])});
  backward.ReplaceGradient(x, dx);
}

// Where tensor ranks divide the vocabulary: each makes a part of x's gradient.
void EmitDividedHeadBackward(Backward& backward, const Op& op) {
  const auto gradient = [&](ValueId parameter) {
    Output output = parameter == kNoValue ? Output{} : backward.ParameterGradient(parameter);
    output.optional = true;
    return output;
  };
  const ValueId x = op.inputs[0];
  const ValueId dsum = backward.Gradient(x);
  const ValueId dx = backward.NewGradient(x);
  const ValueId part = backward.NewGradient(x, " of a tensor rank");
  const size_t parts = HeadSizes::kGatheredPartsOfLoss, logits = parts + 1;
  std::vector<ValueId> inputs(op.inputs.begin(), op.inputs.begin() + parts);
  inputs.insert(inputs.end(), {kNoValue, op.inputs[parts]});
  std::vector<Output> outputs = {op.outputs[0],
                                 {.value = part, .may_overwrite = x},
                                 gradient(op.inputs[1]),
                                 gradient(op.inputs[3])};
  if (op.inputs.size() > logits) {
    inputs.push_back(op.inputs[logits]);
    const ValueId dlogits = backward.NewGradient(op.inputs[logits]);
    outputs.push_back({.value = dlogits, .may_overwrite = op.inputs[logits]});
  }
  backward.Emit(op, OpKind::kLmHeadLossBackward, std::move(inputs), std::move(outputs));
  backward.Emit(op, OpKind::kTensorReduce, {part, dsum, kNoValue},
                {{.value = dx, .may_overwrite = part}});
  backward.ReplaceGradient(x, dx);
}

// Forward and backward in one op, so it takes the forward op's place.
absl::Status LmHeadLossGradient(Backward& backward, const Op& op) {
  if (op.attributes.vocabulary > 0) {
    EmitDividedHeadBackward(backward, op);
    return absl::OkStatus();
  }
  EmitHeadBackward(backward, op, OpKind::kLmHeadLossBackward, op.outputs[0], {});
  return absl::OkStatus();
}

absl::Status LogProbsGradient(Backward& backward, const Op& op) {
  MP_ASSIGN_OR_RETURN(const ValueId gradients, backward.RequireGradient(op, op.outputs[0].value));
  EmitHeadBackward(backward, op, OpKind::kLmHeadLogProbsBackward, {}, {gradients});
  return absl::OkStatus();
}

// Logits of every row. Where only rows with a target have some, how many those are is not known
// before they are read: counted as if they were one chunk.
double LogitsProduct(const Graph& graph, const Op& op) {
  const int64_t rows =
      op.attributes.gathers ? op.attributes.chunk_rows : graph.values[op.inputs[0]].shape[0];
  return ProductFlops(graph.values[op.inputs[1]].shape, rows);
}

Cost LossCost(const Graph& graph, const Op& op) {
  if (HeadSizes::AddsUp(op)) return {.bytes = OperandBytes(graph, op, 2)};
  return {.flops = LogitsProduct(graph, op), .bytes = OperandBytes(graph, op)};
}

// Logits, dx, dwte. Where ranks divide the vocabulary, the logits have been made before.
Cost LossBackwardCost(const Graph& graph, const Op& op) {
  const bool made = op.attributes.vocabulary > 0;
  const bool again = made && !HeadSizes::KeepsLogits(op);
  const int products = (op.outputs[2].value == kNoValue ? 1 : 2) + (made && !again ? 0 : 1);
  return {.flops = products * LogitsProduct(graph, op),
          .bytes = OperandBytes(graph, op),
          .repeated_flops = again ? LogitsProduct(graph, op) : 0};
}

// Of x mostly one row of each sequence: as good as nothing.
Cost LogitsCost(const Graph& graph, const Op& op) {
  const int64_t rows = graph.values[op.outputs[0].value].shape[0];
  const int64_t weights = Elements(graph.values[op.inputs[1]].shape);
  return {.flops = 2.0 * static_cast<double>(rows * weights), .bytes = OperandBytes(graph, op, 1)};
}

// Whether the operands fit.
bool ExpectHead(Builder& b, absl::string_view name, std::array<ValueId, 4> inputs,
                int64_t chunk_rows) {
  const auto [x, wte, targets, bias] = inputs;
  const DType dtype = b.compute_dtype();
  const int64_t width = b.Dimension(name, "x", x, 1);
  const int64_t vocabulary = b.Dimension(name, "wte", wte, 0);
  if (!b.Expect(name, "x", x, dtype, {b.rows(), width}) ||
      !b.Expect(name, "wte", wte, dtype, {vocabulary, width}) ||
      !b.Expect(name, "targets", targets, DType::kI32, {b.rows()}) ||
      (bias != kNoValue && !b.Expect(name, "bias", bias, dtype, {vocabulary}))) {
    return false;
  }
  if (chunk_rows < 1 || chunk_rows > b.rows()) {
    b.Fail(name, absl::StrCat("chunk_rows ", chunk_rows, " is not in [1, ", b.rows(), "]"));
  }
  return true;
}

ValueId AddLmHeadLoss(Builder& b, absl::string_view name, std::array<ValueId, 4> inputs,
                      int64_t chunk_rows, bool gathers, double weight) {
  if (!ExpectHead(b, name, inputs, chunk_rows)) return kNoValue;
  const auto [x, wte, targets, bias] = inputs;
  Op& op = b.AddOp(OpKind::kLmHeadLoss, {x, wte, targets, bias});
  op.attributes.chunk_rows = chunk_rows;
  op.attributes.gathers = gathers;
  return b.AddLoss(name, targets, weight, op);
}

int64_t LossWorkspace(const WorkspaceContext& c) {
  return HeadSizes::AddsUp(c.op) ? 0 : CpuHeadLayout(c.graph, c.op).Bytes();
}
int64_t GpuLossWorkspace(const WorkspaceContext& c) {
  return HeadSizes::AddsUp(c.op) ? 0 : GpuHeadLayout(c.graph, c.op).Bytes();
}
int64_t GpuLogitsWorkspace(const WorkspaceContext& c) {
  return GpuHeadLayout(c.graph, c.op).TakenRowsBytes(c.op);
}

}  // namespace

constinit const OpDefinition kLmHeadLoss = {.gradient = LmHeadLossGradient,
                                            .cost = LossCost,
                                            .cpu_workspace = LossWorkspace,
                                            .gpu_workspace = GpuLossWorkspace,
                                            .multiplies = true};
constinit const OpDefinition kLmHeadParts = {.cost = LossCost,
                                             .cpu_workspace = LossWorkspace,
                                             .gpu_workspace = GpuLossWorkspace,
                                             .multiplies = true,
                                             .once = true};
constinit const OpDefinition kLmHeadLossBackward = {.cost = LossBackwardCost,
                                                    .cpu_workspace = LossWorkspace,
                                                    .gpu_workspace = GpuLossWorkspace,
                                                    .multiplies = true};
constinit const OpDefinition kLmHeadLogProbs = {.gradient = LogProbsGradient,
                                                .cost = LossCost,
                                                .cpu_workspace = LossWorkspace,
                                                .gpu_workspace = GpuLossWorkspace,
                                                .multiplies = true};
constinit const OpDefinition kLmHeadLogProbsBackward = {.cost = LossBackwardCost,
                                                        .cpu_workspace = LossWorkspace,
                                                        .gpu_workspace = GpuLossWorkspace,
                                                        .multiplies = true};
constinit const OpDefinition kLmHeadLogits = {
    .cost = LogitsCost, .gpu_workspace = GpuLogitsWorkspace, .multiplies = true};

ValueId LmHeadLoss(Builder& b, absl::string_view name, ValueId x, ValueId wte, ValueId targets,
                   int64_t chunk_rows, double weight) {
  return AddLmHeadLoss(b, name, {x, wte, targets, kNoValue}, chunk_rows, /*gathers=*/false, weight);
}

ValueId TokenClassifierLoss(Builder& b, absl::string_view name, ValueId x, ValueId weights,
                            ValueId bias, ValueId targets, int64_t chunk_rows, double weight) {
  return AddLmHeadLoss(b, name, {x, weights, targets, bias}, chunk_rows, /*gathers=*/false, weight);
}

ValueId MaskedLmHeadLoss(Builder& b, absl::string_view name, ValueId x, ValueId wte, ValueId bias,
                         ValueId targets, int64_t chunk_rows, double weight) {
  return AddLmHeadLoss(b, name, {x, wte, targets, bias}, chunk_rows, /*gathers=*/true, weight);
}

Op LmHeadPartsOp(const Op& loss, ValueId parts, ValueId logits) {
  Op op = {.kind = OpKind::kLmHeadParts,
           .block = loss.block,
           .inputs = loss.inputs,
           .outputs = {{.value = parts}},
           .attributes = loss.attributes,
           .constant = true};
  if (logits != kNoValue) op.outputs.push_back({.value = logits});
  return op;
}

ValueId LmHeadLogProbs(Builder& b, absl::string_view name, ValueId x, ValueId wte, ValueId targets,
                       int64_t chunk_rows) {
  if (!ExpectHead(b, name, {x, wte, targets, kNoValue}, chunk_rows)) return kNoValue;
  const ValueId log_probs = b.AddActivation(name, "", DType::kF32, {b.rows()});
  Op& op = b.AddOp(OpKind::kLmHeadLogProbs, {x, wte, targets, kNoValue});
  op.attributes.chunk_rows = chunk_rows;
  op.outputs = {{.value = log_probs}};
  return log_probs;
}

ValueId LmHeadLogits(Builder& b, absl::string_view name, ValueId x, ValueId wte, ValueId bias,
                     bool every_row) {
  const DType dtype = b.compute_dtype();
  const int64_t width = b.Dimension(name, "x", x, 1);
  const int64_t vocabulary = b.Dimension(name, "wte", wte, 0);
  if (!b.Expect(name, "x", x, dtype, {b.rows(), width}) ||
      !b.Expect(name, "wte", wte, dtype, {vocabulary, width}) ||
      (bias != kNoValue && !b.Expect(name, "bias", bias, dtype, {vocabulary}))) {
    return kNoValue;
  }
  const int64_t rows = every_row ? b.rows() : b.options().batch;
  const ValueId logits = b.AddActivation(name, "", DType::kF32, {rows, vocabulary});
  Op& op = b.AddOp(OpKind::kLmHeadLogits, {x, wte, bias});
  op.attributes.every_row = every_row;
  op.outputs = {{.value = logits}};
  b.SetLogits(name, logits);
  return logits;
}

}  // namespace milepost::ops
