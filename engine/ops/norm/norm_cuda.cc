#include "common/status_macros.h"
#include "engine/ops/norm/norm_cuda_kernel.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using graph::OpKind;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::StepContext;

bool IsFused(OpKind kind) {
  return kind == OpKind::kResidualLayerNorm || kind == OpKind::kResidualRmsNorm ||
         kind == OpKind::kResidualLayerNormBackward;
}

bool IsLayerNorm(OpKind kind) {
  return kind == OpKind::kLayerNorm || kind == OpKind::kResidualLayerNorm ||
         kind == OpKind::kLayerNormBackward || kind == OpKind::kResidualLayerNormBackward;
}

// Inputs: [residual,] x, gamma[, beta]; outputs: [sum,] y[, mean], rstd.
template <typename T>
absl::StatusOr<BoundOp> NormOf(const CudaBinding& b) {
  const bool fused = IsFused(b.planned.op.kind);
  const bool layer_norm = IsLayerNorm(b.planned.op.kind);
  const int first = fused ? 1 : 0;
  const graph::Shape& shape = b.InputShape(0);
  cuda::NormForwardArgs<T> args;
  args.x = b.Input<T>(first);
  args.residual = fused ? b.Input<T>(0) : nullptr;
  args.sum = fused ? b.Output<T>(0) : nullptr;
  args.gamma = b.Input<T>(first + 1);
  args.beta = layer_norm ? b.Input<T>(first + 2) : nullptr;
  args.y = b.Output<T>(first);
  args.mean = layer_norm ? b.Output<float>(first + 1) : nullptr;
  args.rstd = b.Output<float>(first + (layer_norm ? 2 : 1));
  args.width = shape.back();
  args.rows = graph::Elements(shape) / args.width;
  args.epsilon = static_cast<float>(b.attributes().epsilon);
  args.gamma_offset = static_cast<float>(b.attributes().gamma_offset);
  if (fused) args.dropout = b.Dropout(args.width);
  return [args, stream = b.stream()](const StepContext&) {
    return cuda::NormForward<T>(args, stream);
  };
}

// Inputs: x, gamma[, mean], rstd, dy, dsum; outputs: dx[, ddelta], dgamma[, dbeta].
template <typename T>
absl::StatusOr<BoundOp> NormBackwardOf(const CudaBinding& b) {
  const bool fused = IsFused(b.planned.op.kind);
  const bool layer_norm = IsLayerNorm(b.planned.op.kind);
  const int rstd = layer_norm ? 3 : 2;
  const int dgamma = fused ? 2 : 1;
  const graph::Shape& shape = b.InputShape(0);
  cuda::NormBackwardArgs<T> args;
  args.x = b.Input<T>(0);
  args.gamma = b.Input<T>(1);
  args.gamma_offset = static_cast<float>(b.attributes().gamma_offset);
  args.mean = layer_norm ? b.Input<float>(2) : nullptr;
  args.rstd = b.Input<float>(rstd);
  args.dy = b.Input<T>(rstd + 1);
  args.dx_upstream = b.Input<T>(rstd + 2);
  args.dx = b.Output<T>(0);
  args.d_delta = fused ? b.Output<T>(1) : nullptr;
  args.dgamma = b.Output<float>(dgamma);
  args.dbeta = layer_norm ? b.Output<float>(dgamma + 1) : nullptr;
  args.width = shape.back();
  args.rows = graph::Elements(shape) / args.width;
  if (fused) args.dropout = b.Dropout(args.width);
  MP_RETURN_IF_ERROR(b.RequireWorkspace(cuda::NormBackwardWorkspaceBytes(args.rows, args.width)));
  return [args, accumulation = b.OutputAccumulation(dgamma), workspace = b.Workspace(),
          stream = b.stream()](const StepContext& context) {
    cuda::NormBackwardArgs<T> now = args;
    now.accumulate = accumulation.At(context);
    return cuda::NormBackward<T>(now, workspace, stream);
  };
}

}  // namespace

constinit const CudaOp kLayerNorm = {.bind = MP_BY_DTYPE(NormOf)};
constinit const CudaOp kResidualLayerNorm = {.bind = MP_BY_DTYPE(NormOf)};
constinit const CudaOp kRmsNorm = {.bind = MP_BY_DTYPE(NormOf)};
constinit const CudaOp kResidualRmsNorm = {.bind = MP_BY_DTYPE(NormOf)};
constinit const CudaOp kLayerNormBackward = {.bind = MP_BY_DTYPE(NormBackwardOf)};
constinit const CudaOp kResidualLayerNormBackward = {.bind = MP_BY_DTYPE(NormBackwardOf)};
constinit const CudaOp kRmsNormBackward = {.bind = MP_BY_DTYPE(NormBackwardOf)};

}  // namespace milepost::ops::gpu
