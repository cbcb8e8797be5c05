// Embedding, LayerNorm, GELU, dropout and attention on the CPU.
#include "common/status_macros.h"
#include "engine/kernels/cpu/attention.h"
#include "engine/kernels/cpu/dropout.h"
#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/embedding.h"
#include "engine/kernels/cpu/gelu_erf.h"
#include "engine/kernels/cpu/layernorm.h"
#include "engine/runtime/cpu_ops.h"

namespace milepost::runtime {
namespace {

kernels::EmbeddingRows EmbeddingRowsOf(const Binding& b, int positions, int segments) {
  return {b.Input<int32_t>(0), b.Input<int32_t>(positions), b.Input<int32_t>(segments),
          b.attributes().batch, b.attributes().sequence};
}

template <typename T>
absl::StatusOr<BoundOp> EmbeddingOf(const Binding& b) {
  const int64_t width = b.InputShape(1)[1];
  const kernels::EmbeddingTables<T> tables{b.Input<T>(1), b.Input<T>(2), b.Input<T>(4)};
  return [rows = EmbeddingRowsOf(b, 3, 5), tables, x = b.Output<T>(0), width,
          dropout = DropoutBinding(b, width)](const StepContext& context) {
    kernels::EmbeddingForward<T>(rows, tables, width, dropout.At(context), x);
    return absl::OkStatus();
  };
}

// wte's gradient may already hold the head's, the others have no other writer: each accumulates or
// not for itself.
template <typename T>
absl::StatusOr<BoundOp> EmbeddingBackwardOf(const Binding& b) {
  struct Table {
    kernels::TableGradient gradient;
    Binding::Accumulation accumulation;
    kernels::TableGradient At(const StepContext& context) const {
      return {gradient.data, gradient.rows, accumulation.At(context)};
    }
  };
  const auto table = [&b](int output) -> Table {
    if (b.OutputId(output) == graph::kNoValue) return {};
    return {{b.Output<float>(output), b.OutputShape(output)[0]}, b.OutputAccumulation(output)};
  };
  const int64_t width = b.InputShape(1)[1];
  return
      [rows = EmbeddingRowsOf(b, 2, 3), dy = b.Input<T>(1), width, wte = table(0), wpe = table(1),
       wse = table(2), dropout = DropoutBinding(b, width)](const StepContext& context) {
        kernels::EmbeddingBackward<T>(rows, dy, width, dropout.At(context), wte.At(context),
                                      wpe.At(context), wse.At(context));
        return absl::OkStatus();
      };
}

int64_t Rows(const graph::Shape& shape) { return graph::Elements(shape) / shape.back(); }

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
  MP_RETURN_IF_ERROR(b.RequireWorkspace(
      static_cast<int64_t>(kernels::LayerNormBackwardWorkspaceBytes(rows, width))));
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
absl::StatusOr<BoundOp> GeluOf(const Binding& b) {
  const auto run = b.attributes().exact ? kernels::GeluErfForward<T> : kernels::GeluForward<T>;
  return [run, x = b.Input<T>(0), n = graph::Elements(b.InputShape(0)),
          y = b.Output<T>(0)](const StepContext&) {
    run(x, n, y);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> GeluBackwardOf(const Binding& b) {
  const auto run = b.attributes().exact ? kernels::GeluErfBackward<T> : kernels::GeluBackward<T>;
  return [run, x = b.Input<T>(0), dy = b.Input<T>(1), n = graph::Elements(b.InputShape(0)),
          dx = b.Output<T>(0)](const StepContext&) {
    run(x, dy, n, dx);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> DropoutOf(const Binding& b) {
  return [x = b.Input<T>(0), n = graph::Elements(b.InputShape(0)), y = b.Output<T>(0),
          dropout = DropoutBinding(b, b.InputShape(0)[1])](const StepContext& context) {
    kernels::Dropout<T>(x, n, dropout.At(context), y);
    return absl::OkStatus();
  };
}

absl::StatusOr<kernels::AttentionShape> AttentionShapeOf(const Binding& b) {
  const graph::Attributes& a = b.attributes();
  const kernels::AttentionShape shape{
      .batch = a.batch,
      .sequence = a.sequence,
      .heads = a.heads,
      .head_dim = b.InputShape(0).back() / (a.heads + 2 * a.kv_heads),
      .kv_heads = a.kv_heads,
      .causal = a.causal};
  MP_RETURN_IF_ERROR(kernels::CheckAttentionShape(shape));
  return shape;
}

template <typename T>
absl::StatusOr<BoundOp> AttentionOf(const Binding& b) {
  MP_ASSIGN_OR_RETURN(const kernels::AttentionShape shape, AttentionShapeOf(b));
  MP_RETURN_IF_ERROR(b.RequireWorkspace(static_cast<int64_t>(
      kernels::AttentionForwardWorkspaceBytes(shape, kernels::kDTypeOf<T>, b.threads))));
  return [shape, qkv = b.Input<T>(0), documents = b.Input<int32_t>(1), out = b.Output<T>(0),
          lse = b.Output<float>(1), workspace = b.Workspace()](const StepContext&) {
    kernels::AttentionForward<T>(shape, qkv, documents, out, lse, workspace);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> AttentionBackwardOf(const Binding& b) {
  MP_ASSIGN_OR_RETURN(const kernels::AttentionShape shape, AttentionShapeOf(b));
  MP_RETURN_IF_ERROR(b.RequireWorkspace(static_cast<int64_t>(
      kernels::AttentionBackwardWorkspaceBytes(shape, kernels::kDTypeOf<T>, b.threads))));
  return [shape, qkv = b.Input<T>(0), out = b.Input<T>(1), lse = b.Input<float>(2),
          dout = b.Input<T>(3), documents = b.Input<int32_t>(4), dqkv = b.Output<T>(0),
          workspace = b.Workspace()](const StepContext&) {
    kernels::AttentionBackward<T>(shape, qkv, documents, out, lse, dout, dqkv, workspace);
    return absl::OkStatus();
  };
}

}  // namespace

absl::StatusOr<BoundOp> BindEmbedding(const Binding& b) { return MP_BIND_BY_DTYPE(EmbeddingOf, b); }
absl::StatusOr<BoundOp> BindEmbeddingBackward(const Binding& b) {
  return MP_BIND_BY_DTYPE(EmbeddingBackwardOf, b);
}
absl::StatusOr<BoundOp> BindLayerNorm(const Binding& b) { return MP_BIND_BY_DTYPE(LayerNormOf, b); }
absl::StatusOr<BoundOp> BindResidualLayerNorm(const Binding& b) {
  return MP_BIND_BY_DTYPE(ResidualLayerNormOf, b);
}
absl::StatusOr<BoundOp> BindLayerNormBackward(const Binding& b) {
  return MP_BIND_BY_DTYPE(LayerNormBackwardOf, b);
}
absl::StatusOr<BoundOp> BindGelu(const Binding& b) { return MP_BIND_BY_DTYPE(GeluOf, b); }
absl::StatusOr<BoundOp> BindDropout(const Binding& b) { return MP_BIND_BY_DTYPE(DropoutOf, b); }
absl::StatusOr<BoundOp> BindGeluBackward(const Binding& b) {
  return MP_BIND_BY_DTYPE(GeluBackwardOf, b);
}
absl::StatusOr<BoundOp> BindAttention(const Binding& b) { return MP_BIND_BY_DTYPE(AttentionOf, b); }
absl::StatusOr<BoundOp> BindAttentionBackward(const Binding& b) {
  return MP_BIND_BY_DTYPE(AttentionBackwardOf, b);
}

}  // namespace milepost::runtime
