#include "common/status_macros.h"
#include "engine/ops/norm/layernorm_cpu_kernel.h"
#include "engine/ops/norm/rmsnorm_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_op.h"

namespace milepost::ops::cpu {
namespace {

using runtime::Binding;
using runtime::BoundOp;
using runtime::DropoutBinding;
using runtime::StepContext;

int64_t Rows(const graph::Shape& shape) { return graph::Elements(shape) / shape.back(); }

kernels::RmsNormShape RmsNormShapeOf(const Binding& b) {
  const graph::Shape& shape = b.InputShape(0);
  return {.rows = shape[0],
          .width = shape[1],
          .epsilon = static_cast<float>(b.attributes().epsilon),
          .gamma_offset = static_cast<float>(b.attributes().gamma_offset)};
}

template <typename T>
absl::StatusOr<BoundOp> LayerNormOf(const Binding& b) {
  const graph::Shape& shape = b.InputShape(0);
  return [x = b.Input<T>(0), gamma = b.Input<T>(1), beta = b.Input<T>(2), y = b.Output<T>(0),
          mean = b.Output<float>(1), rstd = b.Output<float>(2), rows = Rows(shape),
          width = shape.back(),
          epsilon = static_cast<float>(b.attributes().epsilon)](const StepContext&) {
    kernels::LayerNormForward<T>(x, gamma, beta, rows, width, epsilon, y, mean, rstd);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> ResidualLayerNormOf(const Binding& b) {
  const graph::Shape& shape = b.InputShape(0);
  return [residual = b.Input<T>(0), delta = b.Input<T>(1), gamma = b.Input<T>(2),
          beta = b.Input<T>(3), sum = b.Output<T>(0), y = b.Output<T>(1), mean = b.Output<float>(2),
          rstd = b.Output<float>(3), rows = Rows(shape), width = shape.back(),
          epsilon = static_cast<float>(b.attributes().epsilon),
          dropout = DropoutBinding(b, shape.back())](const StepContext& context) {
    kernels::ResidualLayerNormForward<T>(residual, delta, dropout.At(context), gamma, beta, rows,
                                         width, epsilon, sum, y, mean, rstd);
    return absl::OkStatus();
  };
}

// kLayerNormBackward: outputs dx, dgamma, dbeta; kResidualLayerNormBackward: dx, ddelta, dgamma,
// dbeta. Inputs are the same.
template <typename T>
absl::StatusOr<BoundOp> LayerNormBackwardOf(const Binding& b) {
  const graph::Shape& shape = b.InputShape(0);
  const int64_t rows = Rows(shape);
  const int64_t width = shape.back();
  const bool fused = b.planned.op.kind == graph::OpKind::kResidualLayerNormBackward;
  const int gamma_output = fused ? 2 : 1;
  MP_RETURN_IF_ERROR(b.RequireWorkspace(kernels::LayerNormBackwardWorkspaceBytes(rows, width)));
  kernels::LayerNormBackwardArgs<T> args;
  args.x = b.Input<T>(0);
  args.gamma = b.Input<T>(1);
  args.mean = b.Input<float>(2);
  args.rstd = b.Input<float>(3);
  args.dy = b.Input<T>(4);
  args.dx_upstream = b.Input<T>(5);
  args.dx = b.Output<T>(0);
  args.d_delta = fused ? b.Output<T>(1) : nullptr;
  args.dgamma = b.Output<float>(gamma_output);
  args.dbeta = b.Output<float>(gamma_output + 1);
  return [args, rows, width, workspace = b.Workspace(),
          accumulation = b.OutputAccumulation(gamma_output),
          dropout = DropoutBinding(b, width)](const StepContext& context) {
    kernels::LayerNormBackwardArgs<T> now = args;
    now.accumulate = accumulation.At(context);
    now.dropout = dropout.At(context);
    kernels::LayerNormBackward<T>(now, rows, width, workspace);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> RmsNormOf(const Binding& b) {
  return [shape = RmsNormShapeOf(b), x = b.Input<T>(0), gamma = b.Input<T>(1), y = b.Output<T>(0),
          rstd = b.Output<float>(1)](const StepContext&) {
    kernels::RmsNormForward<T>(shape, x, gamma, y, rstd);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> ResidualRmsNormOf(const Binding& b) {
  return [shape = RmsNormShapeOf(b), residual = b.Input<T>(0), delta = b.Input<T>(1),
          gamma = b.Input<T>(2), sum = b.Output<T>(0), y = b.Output<T>(1),
          rstd = b.Output<float>(2)](const StepContext&) {
    kernels::ResidualRmsNormForward<T>(shape, residual, delta, gamma, sum, y, rstd);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> RmsNormBackwardOf(const Binding& b) {
  const kernels::RmsNormShape shape = RmsNormShapeOf(b);
  MP_RETURN_IF_ERROR(
      b.RequireWorkspace(kernels::RmsNormBackwardWorkspaceBytes(shape.rows, shape.width)));
  const kernels::RmsNormBackwardArgs<T> args{.x = b.Input<T>(0),
                                             .gamma = b.Input<T>(1),
                                             .rstd = b.Input<float>(2),
                                             .dy = b.Input<T>(3),
                                             .dx_upstream = b.Input<T>(4),
                                             .dx = b.Output<T>(0),
                                             .dgamma = b.Output<float>(1)};
  return [shape, args, accumulation = b.OutputAccumulation(1),
          workspace = b.Workspace()](const StepContext& context) {
    kernels::RmsNormBackwardArgs<T> now = args;
    now.accumulate = accumulation.At(context);
    kernels::RmsNormBackward<T>(shape, now, workspace);
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kLayerNorm = {.bind = MP_BY_DTYPE(LayerNormOf)};
constinit const CpuOp kResidualLayerNorm = {.bind = MP_BY_DTYPE(ResidualLayerNormOf)};
constinit const CpuOp kLayerNormBackward = {.bind = MP_BY_DTYPE(LayerNormBackwardOf)};
constinit const CpuOp kResidualLayerNormBackward = {.bind = MP_BY_DTYPE(LayerNormBackwardOf)};
constinit const CpuOp kRmsNorm = {.bind = MP_BY_DTYPE(RmsNormOf)};
constinit const CpuOp kResidualRmsNorm = {.bind = MP_BY_DTYPE(ResidualRmsNormOf)};
constinit const CpuOp kRmsNormBackward = {.bind = MP_BY_DTYPE(RmsNormBackwardOf)};

}  // namespace milepost::ops::cpu
