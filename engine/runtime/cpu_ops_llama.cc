// RMSNorm, norms of queries and keys, SwiGLU and rotary positions on the CPU.
#include "common/status_macros.h"
#include "engine/kernels/cpu/qk_norm.h"
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

kernels::QkNormShape QkNormShapeOf(const Binding& b) {
  return {.rows = b.InputShape(0)[0],
          .heads = b.attributes().heads,
          .kv_heads = b.attributes().kv_heads,
          .head_dim = b.InputShape(1)[0],
          .epsilon = static_cast<float>(b.attributes().epsilon)};
}

template <typename T>
absl::StatusOr<BoundOp> QkNormOf(const Binding& b) {
  return [shape = QkNormShapeOf(b), qkv = b.Input<T>(0), gamma_q = b.Input<T>(1),
          gamma_k = b.Input<T>(2), out = b.Output<T>(0)](const StepContext&) {
    kernels::QkNormForward<T>(shape, qkv, gamma_q, gamma_k, out);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> QkNormBackwardOf(const Binding& b) {
  const kernels::QkNormShape shape = QkNormShapeOf(b);
  MP_RETURN_IF_ERROR(b.RequireWorkspace(
      static_cast<int64_t>(kernels::QkNormBackwardWorkspaceBytes(shape.rows, shape.head_dim))));
  const kernels::QkNormBackwardArgs<T> args{.qkv = b.Input<T>(0),
                                            .gamma_q = b.Input<T>(1),
                                            .gamma_k = b.Input<T>(2),
                                            .dout = b.Input<T>(3),
                                            .dqkv = b.Output<T>(0),
                                            .dgamma_q = b.Output<float>(1),
                                            .dgamma_k = b.Output<float>(2)};
  return [shape, args, q = b.OutputAccumulation(1), k = b.OutputAccumulation(2),
          workspace = b.Workspace()](const StepContext& context) {
    kernels::QkNormBackwardArgs<T> now = args;
    now.accumulate_q = q.At(context);
    now.accumulate_k = k.At(context);
    kernels::QkNormBackward<T>(shape, now, workspace);
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
absl::StatusOr<BoundOp> BindQkNorm(const Binding& b) { return MP_BIND_BY_DTYPE(QkNormOf, b); }
absl::StatusOr<BoundOp> BindQkNormBackward(const Binding& b) {
  return MP_BIND_BY_DTYPE(QkNormBackwardOf, b);
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
