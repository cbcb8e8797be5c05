// RMSNorm, SwiGLU and rotary positions on the CPU.
#include "common/status_macros.h"
#include "engine/kernels/cpu/rmsnorm.h"
#include "engine/kernels/cpu/rope.h"
#include "engine/kernels/cpu/swiglu.h"
#include "engine/runtime/cpu_ops.h"

namespace milepost::runtime {
namespace {

template <typename T>
absl::StatusOr<BoundOp> RmsNormOf(const Binding& b) {
  const graph::Shape& shape = b.InputShape(0);
  return [x = b.Input<T>(0), gamma = b.Input<T>(1), y = b.Output<T>(0), rstd = b.Output<float>(1),
          rows = shape[0], width = shape[1],
          epsilon = static_cast<float>(b.attributes().epsilon)](const StepContext&) {
    kernels::RmsNormForward<T>(x, gamma, rows, width, epsilon, y, rstd);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> ResidualRmsNormOf(const Binding& b) {
  const graph::Shape& shape = b.InputShape(0);
  return [residual = b.Input<T>(0), delta = b.Input<T>(1), gamma = b.Input<T>(2),
          sum = b.Output<T>(0), y = b.Output<T>(1), rstd = b.Output<float>(2), rows = shape[0],
          width = shape[1],
          epsilon = static_cast<float>(b.attributes().epsilon)](const StepContext&) {
    kernels::ResidualRmsNormForward<T>(residual, delta, gamma, rows, width, epsilon, sum, y, rstd);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> RmsNormBackwardOf(const Binding& b) {
  const graph::Shape& shape = b.InputShape(0);
  MP_RETURN_IF_ERROR(b.RequireWorkspace(
      static_cast<int64_t>(kernels::RmsNormBackwardWorkspaceBytes(shape[0], shape[1]))));
  const kernels::RmsNormBackwardArgs<T> args{.x = b.Input<T>(0),
                                             .gamma = b.Input<T>(1),
                                             .rstd = b.Input<float>(2),
                                             .dy = b.Input<T>(3),
                                             .dx_upstream = b.Input<T>(4),
                                             .dx = b.Output<T>(0),
                                             .dgamma = b.Output<float>(1)};
  return [args, rows = shape[0], width = shape[1], accumulation = b.OutputAccumulation(1),
          workspace = b.Workspace()](const StepContext& context) {
    kernels::RmsNormBackwardArgs<T> now = args;
    now.accumulate = accumulation.At(context);
    kernels::RmsNormBackward<T>(now, rows, width, workspace);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> SwiGluOf(const Binding& b) {
  const graph::Shape& shape = b.OutputShape(0);
  return [x = b.Input<T>(0), y = b.Output<T>(0), rows = shape[0],
          width = shape[1]](const StepContext&) {
    kernels::SwiGluForward<T>(x, rows, width, y);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> SwiGluBackwardOf(const Binding& b) {
  const graph::Shape& shape = b.InputShape(1);
  return [x = b.Input<T>(0), dy = b.Input<T>(1), dx = b.Output<T>(0), rows = shape[0],
          width = shape[1]](const StepContext&) {
    kernels::SwiGluBackward<T>(x, dy, rows, width, dx);
    return absl::OkStatus();
  };
}

// Forward, and backward the other way.
template <typename T>
absl::StatusOr<BoundOp> RopeOf(const Binding& b) {
  const graph::Attributes& a = b.attributes();
  const kernels::RopeShape shape{.batch = a.batch,
                                 .sequence = a.sequence,
                                 .width = b.InputShape(0)[1],
                                 .heads = a.heads + a.kv_heads,
                                 .head_dim = b.InputShape(1)[1],
                                 .positions = b.Input<int32_t>(2)};
  return [shape, x = b.Input<T>(0), table = b.Input<float>(1), out = b.Output<T>(0),
          forward = b.planned.op.kind == graph::OpKind::kRope](const StepContext&) {
    kernels::Rope<T>(shape, x, table, forward, out);
    return absl::OkStatus();
  };
}

}  // namespace

absl::StatusOr<BoundOp> BindRmsNorm(const Binding& b) { return MP_BIND_BY_DTYPE(RmsNormOf, b); }
absl::StatusOr<BoundOp> BindResidualRmsNorm(const Binding& b) {
  return MP_BIND_BY_DTYPE(ResidualRmsNormOf, b);
}
absl::StatusOr<BoundOp> BindRmsNormBackward(const Binding& b) {
  return MP_BIND_BY_DTYPE(RmsNormBackwardOf, b);
}
absl::StatusOr<BoundOp> BindSwiGlu(const Binding& b) { return MP_BIND_BY_DTYPE(SwiGluOf, b); }
absl::StatusOr<BoundOp> BindSwiGluBackward(const Binding& b) {
  return MP_BIND_BY_DTYPE(SwiGluBackwardOf, b);
}
absl::StatusOr<BoundOp> BindRope(const Binding& b) { return MP_BIND_BY_DTYPE(RopeOf, b); }

absl::StatusOr<BoundOp> BindRopeTable(const Binding& b) {
  const graph::RopeAttributes& rope = b.attributes().rope;
  const kernels::RopeParams params{.theta = rope.theta,
                                   .factor = rope.factor,
                                   .low_frequency = rope.low_frequency,
                                   .high_frequency = rope.high_frequency,
                                   .original_context = rope.original_context};
  const graph::Shape& shape = b.OutputShape(0);
  return [params, positions = b.Input<int32_t>(0), rows = shape[0], head_dim = shape[1],
          table = b.Output<float>(0)](const StepContext&) {
    kernels::RopeTable(params, positions, rows, head_dim, table);
    return absl::OkStatus();
  };
}

}  // namespace milepost::runtime
