#include "engine/ops/norm/norm.h"

#include "common/status_macros.h"
#include "engine/ops/backward.h"
#include "engine/ops/norm/norm_contract.h"
#include "engine/ops/op_definition.h"

namespace milepost::ops {
namespace {

using graph::Builder;
using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::Output;
using graph::ValueId;

absl::Status LayerNormGradient(Backward& backward, const Op& op) {
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

absl::Status ResidualLayerNormGradient(Backward& backward, const Op& op) {
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

absl::Status RmsNormGradient(Backward& backward, const Op& op) {
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

absl::Status ResidualRmsNormGradient(Backward& backward, const Op& op) {
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

int64_t LayerNormWorkspace(const WorkspaceContext& c) {
  return kernels::LayerNormBackwardWorkspaceBytes(c.Shape(0)[0], c.Shape(0)[1]);
}
int64_t RmsNormWorkspace(const WorkspaceContext& c) {
  return kernels::RmsNormBackwardWorkspaceBytes(c.Shape(0)[0], c.Shape(0)[1]);
}
int64_t GpuNormWorkspace(const WorkspaceContext& c) {
  return kernels::cuda::NormBackwardWorkspaceBytes(c.Shape(0)[0], c.Shape(0)[1]);
}

}  // namespace

constinit const OpDefinition kLayerNorm = {.gradient = LayerNormGradient, .cheap = Always};
constinit const OpDefinition kResidualLayerNorm = {
    .gradient = ResidualLayerNormGradient, .cheap = Always, .after_sum = OpKind::kLayerNorm};
constinit const OpDefinition kRmsNorm = {.gradient = RmsNormGradient, .cheap = Always};
constinit const OpDefinition kResidualRmsNorm = {
    .gradient = ResidualRmsNormGradient, .cheap = Always, .after_sum = OpKind::kRmsNorm};
constinit const OpDefinition kLayerNormBackward = {.cpu_workspace = LayerNormWorkspace,
                                                   .gpu_workspace = GpuNormWorkspace};
constinit const OpDefinition kResidualLayerNormBackward = {.cpu_workspace = LayerNormWorkspace,
                                                           .gpu_workspace = GpuNormWorkspace};
constinit const OpDefinition kRmsNormBackward = {.cpu_workspace = RmsNormWorkspace,
                                                 .gpu_workspace = GpuNormWorkspace};

LayerNormResult LayerNorm(Builder& b, absl::string_view name, ValueId x, ValueId gamma,
                          ValueId beta, double epsilon) {
  const DType dtype = b.compute_dtype();
  const int64_t width = b.Dimension(name, "x", x, 1);
  if (!b.Expect(name, "x", x, dtype, {b.rows(), width}) ||
      !b.Expect(name, "gamma", gamma, dtype, {width}) ||
      !b.Expect(name, "beta", beta, dtype, {width})) {
    return {};
  }
  const LayerNormResult result = {
      .y = b.AddActivation(name, "", dtype, {b.rows(), width}),
      .mean = b.AddActivation(name, ".mean", DType::kF32, {b.rows()}),
      .rstd = b.AddActivation(name, ".rstd", DType::kF32, {b.rows()}),
  };
  Op& op = b.AddOp(OpKind::kLayerNorm, {x, gamma, beta});
  op.attributes.epsilon = epsilon;
  op.outputs = {{.value = result.y}, {.value = result.mean}, {.value = result.rstd}};
  return result;
}

ResidualLayerNormResult ResidualLayerNorm(Builder& b, absl::string_view name, ValueId residual,
                                          ValueId delta, ValueId gamma, ValueId beta,
                                          double dropout, double epsilon) {
  const DType dtype = b.compute_dtype();
  const int64_t width = b.Dimension(name, "residual", residual, 1);
  if (!b.Expect(name, "residual", residual, dtype, {b.rows(), width}) ||
      !b.Expect(name, "delta", delta, dtype, {b.rows(), width}) ||
      !b.Expect(name, "gamma", gamma, dtype, {width}) ||
      !b.Expect(name, "beta", beta, dtype, {width})) {
    return {};
  }
  const ResidualLayerNormResult result = {
      .sum = b.AddActivation(name, ".sum", dtype, {b.rows(), width}),
      .y = b.AddActivation(name, "", dtype, {b.rows(), width}),
      .mean = b.AddActivation(name, ".mean", DType::kF32, {b.rows()}),
      .rstd = b.AddActivation(name, ".rstd", DType::kF32, {b.rows()}),
  };
  Op& op = b.AddOp(OpKind::kResidualLayerNorm, {residual, delta, gamma, beta});
  op.attributes.epsilon = epsilon;
  op.attributes.dropout = dropout;
  op.attributes.dropout_tag = b.NextDropoutTag(dropout);
  op.outputs = {{.value = result.sum, .may_overwrite = delta},
                {.value = result.y},
                {.value = result.mean},
                {.value = result.rstd}};
  return result;
}

RmsNormResult RmsNorm(Builder& b, absl::string_view name, ValueId x, ValueId gamma, double epsilon,
                      double gamma_offset) {
  const DType dtype = b.compute_dtype();
  const int64_t width = b.Dimension(name, "x", x, 1);
  if (!b.Expect(name, "x", x, dtype, {b.rows(), width}) ||
      !b.Expect(name, "gamma", gamma, dtype, {width})) {
    return {};
  }
  const RmsNormResult result = {
      .y = b.AddActivation(name, "", dtype, {b.rows(), width}),
      .rstd = b.AddActivation(name, ".rstd", DType::kF32, {b.rows()}),
  };
  Op& op = b.AddOp(OpKind::kRmsNorm, {x, gamma});
  op.attributes.epsilon = epsilon;
  op.attributes.gamma_offset = gamma_offset;
  op.outputs = {{.value = result.y}, {.value = result.rstd}};
  return result;
}

ResidualRmsNormResult ResidualRmsNorm(Builder& b, absl::string_view name, ValueId residual,
                                      ValueId delta, ValueId gamma, double epsilon,
                                      double gamma_offset) {
  const DType dtype = b.compute_dtype();
  const int64_t width = b.Dimension(name, "residual", residual, 1);
  if (!b.Expect(name, "residual", residual, dtype, {b.rows(), width}) ||
      !b.Expect(name, "delta", delta, dtype, {b.rows(), width}) ||
      !b.Expect(name, "gamma", gamma, dtype, {width})) {
    return {};
  }
  const ResidualRmsNormResult result = {
      .sum = b.AddActivation(name, ".sum", dtype, {b.rows(), width}),
      .y = b.AddActivation(name, "", dtype, {b.rows(), width}),
      .rstd = b.AddActivation(name, ".rstd", DType::kF32, {b.rows()}),
  };
  Op& op = b.AddOp(OpKind::kResidualRmsNorm, {residual, delta, gamma});
  op.attributes.epsilon = epsilon;
  op.attributes.gamma_offset = gamma_offset;
  op.outputs = {
      {.value = result.sum, .may_overwrite = delta}, {.value = result.y}, {.value = result.rstd}};
  return result;
}

void LeaveOutSum(Op& op) {
  op.kind = DefinitionOf(op.kind).after_sum;
  op.attributes.dropout = 0;  // is in the sum
  op.inputs.erase(op.inputs.begin());
  op.inputs[0] = op.outputs[0].value;
  op.outputs.erase(op.outputs.begin());
}

}  // namespace milepost::ops
