#include "engine/ops/tensor_parallel/tensor_parallel.h"

#include "common/status_macros.h"
#include "engine/ops/backward.h"
#include "engine/ops/contract/sums.h"
#include "engine/ops/op_definition.h"

namespace milepost::ops {
namespace {

using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::ValueId;

absl::Status TensorReduceGradient(Backward& backward, const Op& op) {
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId bias = op.inputs[2];
  if (bias != kNoValue) {
    backward.Emit(op, OpKind::kBiasBackward, {dy}, {backward.ParameterGradient(bias)});
  }
  return backward.SetGradient(op, op.inputs[0], dy);
}

absl::Status TensorScatterGradient(Backward& backward, const Op& op) {
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId bias = op.inputs[2];
  if (bias != kNoValue) {
    backward.Emit(op, OpKind::kBiasBackward, {dy}, {backward.ParameterGradient(bias)});
  }
  const ValueId dx = backward.NewGradient(op.inputs[0]);
  backward.Emit(op, OpKind::kTensorGather, {dy}, {{.value = dx}});
  return backward.SetGradient(op, op.inputs[0], dx);
}

absl::Status TensorRowsGradient(Backward& backward, const Op& op) {
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dx = backward.NewGradient(op.inputs[0]);
  backward.Emit(op, OpKind::kTensorGather, {dy}, {{.value = dx}});
  return backward.SetGradient(op, op.inputs[0], dx);
}

absl::Status TensorGatherGradient(Backward& backward, const Op& op) {
  const ValueId x = op.inputs[0];
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dsum = backward.Gradient(x);
  const ValueId dx = backward.NewGradient(x);
  backward.Emit(op, OpKind::kTensorRows, {dy, dsum}, {{.value = dx, .may_overwrite = dsum}});
  backward.ReplaceGradient(x, dx);
  return absl::OkStatus();
}

// Sums of bf16 are made in fp32, of this rank's share of the elements.
int64_t TensorReduceWorkspace(const WorkspaceContext& c) {
  const graph::Value& x = c.Input(0);
  return x.dtype == DType::kBf16 ? graph::Elements(x.shape) * ByteSize(x.dtype) : 0;
}

int64_t BiasBackwardWorkspace(const WorkspaceContext& c) {
  return kernels::BiasGradientWorkspaceBytes(c.Shape(0)[0], c.Shape(0)[1]);
}

int64_t GpuBiasBackwardWorkspace(const WorkspaceContext& c) {
  return kernels::cuda::BiasGradientWorkspaceBytes(c.Shape(0)[0], c.Shape(0)[1]);
}

}  // namespace

constinit const OpDefinition kTensorReduce = {.gradient = TensorReduceGradient,
                                              .cpu_workspace = TensorReduceWorkspace};
constinit const OpDefinition kTensorScatter = {.gradient = TensorScatterGradient,
                                               .cpu_workspace = TensorReduceWorkspace};
constinit const OpDefinition kTensorRows = {.gradient = TensorRowsGradient, .cheap = Always};
constinit const OpDefinition kTensorGather = {.gradient = TensorGatherGradient, .cheap = Always};
constinit const OpDefinition kBiasBackward = {.cpu_workspace = BiasBackwardWorkspace,
                                              .gpu_workspace = GpuBiasBackwardWorkspace};

Op TensorReduceOp(ValueId x, ValueId added, ValueId bias, ValueId y) {
  return {.kind = OpKind::kTensorReduce,
          .inputs = {x, added, bias},
          .outputs = {{.value = y, .may_overwrite = x}}};
}

Op TensorScatterOp(ValueId x, ValueId bias, ValueId y) {
  return {.kind = OpKind::kTensorScatter, .inputs = {x, kNoValue, bias}, .outputs = {{.value = y}}};
}

Op TensorRowsOp(ValueId x, ValueId y) {
  return {.kind = OpKind::kTensorRows, .inputs = {x, kNoValue}, .outputs = {{.value = y}}};
}

Op TensorGatherOp(ValueId x, ValueId y) {
  Op op = TensorGatherRowsOp(x, y);
  op.constant = true;
  return op;
}

Op TensorGatherRowsOp(ValueId x, ValueId y) {
  return {.kind = OpKind::kTensorGather, .inputs = {x}, .outputs = {{.value = y}}};
}

}  // namespace milepost::ops
