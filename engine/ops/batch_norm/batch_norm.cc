#include "engine/ops/batch_norm/batch_norm.h"

#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "engine/ops/backward.h"
#include "engine/ops/batch_norm/batch_norm_contract.h"
#include "engine/ops/op_definition.h"

namespace milepost::ops {
namespace {

using graph::Builder;
using graph::Elements;
using graph::ImageAttributes;
using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::Output;
using graph::Shape;
using graph::ValueId;
using graph::WriteMode;

// y = BatchNorm(x) + residual, through a ReLU or not, with the statistics of x in training: dx goes
// through those too.
absl::Status BatchNormGradient(Backward& backward, const Op& op) {
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

// What adds to the residual stream is kept: replaying it would replay the stream from its begin.
bool WithoutResidual(const Op& op) { return op.inputs[5] == kNoValue; }

int64_t BatchNormWorkspace(const WorkspaceContext& c) {
  const graph::Shape& images = c.Shape(0);
  return kernels::BatchNormWorkspaceBytes(graph::Elements(images) / images[3], images[3]);
}
int64_t GpuBatchNormWorkspace(const WorkspaceContext& c) {
  const graph::Shape& images = c.Shape(0);
  return kernels::cuda::BatchNormWorkspaceBytes(graph::Elements(images) / images[3], images[3]);
}

}  // namespace

constinit const OpDefinition kBatchNormSums = {.gradient = NoGradient,
                                               .cpu_workspace = BatchNormWorkspace,
                                               .gpu_workspace = GpuBatchNormWorkspace,
                                               .once = true};
constinit const OpDefinition kReduceStatistics = {.gradient = NoGradient, .once = true};
constinit const OpDefinition kBatchNormStatistics = {.gradient = NoGradient, .once = true};
constinit const OpDefinition kBatchNormRunning = {};
constinit const OpDefinition kBatchNorm = {
    .gradient = BatchNormGradient, .cpu_workspace = BatchNormWorkspace, .cheap = WithoutResidual};
constinit const OpDefinition kBatchNormBackwardSums = {.cpu_workspace = BatchNormWorkspace,
                                                       .gpu_workspace = GpuBatchNormWorkspace};
constinit const OpDefinition kBatchNormBackward = {.cpu_workspace = BatchNormWorkspace};
constinit const OpDefinition kAverageStatistics = {.cost = NoCost};

ValueId BatchNorm(Builder& b, absl::string_view name, ValueId x,
                  const BatchNormParameters& parameters, const BatchNormOptions& options) {
  const Shape shape = b.ImageShape(name, "x", x);
  if (shape.empty()) return kNoValue;
  const int64_t channels = shape[3];
  const DType dtype = b.compute_dtype();
  if (!b.Expect(name, "gamma", parameters.gamma, dtype, {channels}) ||
      !b.Expect(name, "beta", parameters.beta, dtype, {channels}) ||
      !b.Expect(name, "running mean", parameters.running_mean, DType::kF32, {channels}) ||
      !b.Expect(name, "running variance", parameters.running_variance, DType::kF32, {channels}) ||
      !b.Expect(name, "batches", parameters.batches, DType::kI64, {}) ||
      (options.residual != kNoValue &&
       !b.Expect(name, "residual", options.residual, dtype, shape))) {
    return kNoValue;
  }
  if (options.training && Elements(shape) / channels < 2) {
    b.Fail(name,
           "a batch norm needs two pixels or more per channel: raise the micro batch or the "
           "image size");
  }
  ImageAttributes attributes;
  attributes.relu = options.relu;
  attributes.synchronised = options.training && options.synchronised;
  attributes.momentum = options.momentum;
  const auto add = [&](OpKind kind, std::initializer_list<ValueId> inputs) -> Op& {
    Op& op = b.AddOp(kind, inputs);
    op.attributes.image = attributes;
    op.attributes.epsilon = options.epsilon;
    return op;
  };
  const ValueId mean = b.AddActivation(name, ".mean", DType::kF32, {channels});
  const ValueId rstd = b.AddActivation(name, ".rstd", DType::kF32, {channels});
  if (options.training) {
    ValueId sums = b.AddActivation(name, ".sums", DType::kF64, {2, channels});
    add(OpKind::kBatchNormSums, {x}).outputs = {{.value = sums}};
    if (options.synchronised) {
      const ValueId all = b.AddActivation(name, ".all_sums", DType::kF64, {2, channels});
      add(OpKind::kReduceStatistics, {sums}).outputs = {{.value = all, .may_overwrite = sums}};
      sums = all;
    }
    Op& op = add(OpKind::kBatchNormStatistics,
                 {sums, parameters.running_mean, parameters.running_variance, parameters.batches});
    op.attributes.image.rows = Elements(shape) / channels;
    op.outputs = {{.value = mean},
                  {.value = rstd},
                  {.value = parameters.running_mean, .mode = WriteMode::kAccumulate},
                  {.value = parameters.running_variance, .mode = WriteMode::kAccumulate},
                  {.value = parameters.batches, .mode = WriteMode::kAccumulate}};
  } else {
    add(OpKind::kBatchNormRunning, {parameters.running_mean, parameters.running_variance})
        .outputs = {{.value = mean}, {.value = rstd}};
  }
  const ValueId y = b.AddActivation(name, "", dtype, shape);
  add(OpKind::kBatchNorm, {x, mean, rstd, parameters.gamma, parameters.beta, options.residual})
      .outputs = {{.value = y, .may_overwrite = x}};
  return y;
}

}  // namespace milepost::ops
