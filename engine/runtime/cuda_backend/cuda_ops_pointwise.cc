// Embedding, GELU, SwiGLU, dropout and rotary positions on the GPU.
#include "common/status_macros.h"
#include "engine/kernels/cuda/elementwise.h"
#include "engine/kernels/cuda/embedding.h"
#include "engine/kernels/cuda/rope.h"
#include "engine/runtime/cuda_backend/cuda_ops.h"

namespace milepost::runtime {
namespace {

using graph::OpKind;
namespace cuda = kernels::cuda;

kernels::EmbeddingRows EmbeddingRowsOf(const CudaBinding& b, int positions, int segments) {
  return {b.Input<int32_t>(0), b.Input<int32_t>(positions), b.Input<int32_t>(segments),
          b.attributes().batch, b.attributes().sequence};
}

template <typename T>
absl::StatusOr<BoundOp> EmbeddingOf(const CudaBinding& b) {
  const int64_t width = b.InputShape(1)[1];
  const kernels::EmbeddingTables<T> tables{b.Input<T>(1), b.Input<T>(2), b.Input<T>(4)};
  return [rows = EmbeddingRowsOf(b, 3, 5), tables, x = b.Output<T>(0), width,
          dropout = b.Dropout(width), stream = b.stream()](const StepContext&) {
    return cuda::EmbeddingForward<T>(rows, tables, width, dropout, x, stream);
  };
}

// wte's gradient may already hold the head's, the others have no other writer: each accumulates or
// not for itself.
template <typename T>
absl::StatusOr<BoundOp> EmbeddingBackwardOf(const CudaBinding& b) {
  struct Table {
    kernels::TableGradient gradient;
    OpBinding::Accumulation accumulation;
    kernels::TableGradient At(const StepContext& context) const {
      return {gradient.data, gradient.rows, accumulation.At(context)};
    }
  };
  const auto table = [&b](int output) -> Table {
    if (b.OutputId(output) == graph::kNoValue) return {};
    return {{b.Output<float>(output), b.OutputShape(output)[0]}, b.OutputAccumulation(output)};
  };
  const graph::Shape& dy = b.InputShape(1);
  MP_RETURN_IF_ERROR(b.RequireWorkspace(cuda::EmbeddingBackwardWorkspaceBytes(dy[0], dy[1])));
  return [rows = EmbeddingRowsOf(b, 2, 3), dy = b.Input<T>(1), width = dy[1], wte = table(0),
          wpe = table(1), wse = table(2), dropout = b.Dropout(dy[1]), workspace = b.Workspace(),
          stream = b.stream()](const StepContext& context) {
    return cuda::EmbeddingBackward<T>(rows, dy, width, dropout, wte.At(context), wpe.At(context),
                                      wse.At(context), workspace, stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> GeluOf(const CudaBinding& b) {
  const int64_t n = graph::Elements(b.InputShape(0));
  const bool exact = b.attributes().exact;
  if (b.planned.op.kind == OpKind::kGelu) {
    return [x = b.Input<T>(0), n, exact, y = b.Output<T>(0), stream = b.stream()](
               const StepContext&) { return cuda::GeluForward<T>(x, n, exact, y, stream); };
  }
  return [x = b.Input<T>(0), dy = b.Input<T>(1), n, exact, dx = b.Output<T>(0),
          stream = b.stream()](const StepContext&) {
    return cuda::GeluBackward<T>(x, dy, n, exact, dx, stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> SwiGluOf(const CudaBinding& b) {
  if (b.planned.op.kind == OpKind::kSwiGlu) {
    const graph::Shape& shape = b.OutputShape(0);
    return [x = b.Input<T>(0), y = b.Output<T>(0), rows = shape[0], width = shape[1],
            stream = b.stream()](const StepContext&) {
      return cuda::SwiGluForward<T>(x, rows, width, y, stream);
    };
  }
  const graph::Shape& shape = b.InputShape(1);
  return [x = b.Input<T>(0), dy = b.Input<T>(1), dx = b.Output<T>(0), rows = shape[0],
          width = shape[1], stream = b.stream()](const StepContext&) {
    return cuda::SwiGluBackward<T>(x, dy, rows, width, dx, stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> DropoutOf(const CudaBinding& b) {
  return [x = b.Input<T>(0), n = graph::Elements(b.InputShape(0)), y = b.Output<T>(0),
          dropout = b.Dropout(b.InputShape(0)[1]), stream = b.stream()](const StepContext&) {
    return cuda::Dropout<T>(x, n, dropout, y, stream);
  };
}

// Forward, and backward the other way.
template <typename T>
absl::StatusOr<BoundOp> RopeOf(const CudaBinding& b) {
  const graph::Attributes& a = b.attributes();
  const kernels::RopeShape shape{.batch = a.batch,
                                 .sequence = a.sequence,
                                 .width = b.InputShape(0)[1],
                                 .heads = a.heads + a.kv_heads,
                                 .head_dim = b.InputShape(1)[1],
                                 .positions = b.Input<int32_t>(2)};
  return [shape, x = b.Input<T>(0), table = b.Input<float>(1), out = b.Output<T>(0),
          forward = b.planned.op.kind == OpKind::kRope, stream = b.stream()](const StepContext&) {
    return cuda::Rope<T>(shape, x, table, forward, out, stream);
  };
}

}  // namespace

absl::StatusOr<BoundOp> BindEmbedding(const CudaBinding& b) {
  return MP_BIND_BY_DTYPE(EmbeddingOf, b);
}
absl::StatusOr<BoundOp> BindEmbeddingBackward(const CudaBinding& b) {
  return MP_BIND_BY_DTYPE(EmbeddingBackwardOf, b);
}
absl::StatusOr<BoundOp> BindGelu(const CudaBinding& b) { return MP_BIND_BY_DTYPE(GeluOf, b); }
absl::StatusOr<BoundOp> BindSwiGlu(const CudaBinding& b) { return MP_BIND_BY_DTYPE(SwiGluOf, b); }
absl::StatusOr<BoundOp> BindDropout(const CudaBinding& b) { return MP_BIND_BY_DTYPE(DropoutOf, b); }
absl::StatusOr<BoundOp> BindRope(const CudaBinding& b) { return MP_BIND_BY_DTYPE(RopeOf, b); }

absl::StatusOr<BoundOp> BindRopeTable(const CudaBinding& b) {
  const graph::RopeAttributes& rope = b.attributes().rope;
  const kernels::RopeParams params{.theta = rope.theta,
                                   .factor = rope.factor,
                                   .low_frequency = rope.low_frequency,
                                   .high_frequency = rope.high_frequency,
                                   .original_context = rope.original_context};
  const graph::Shape& shape = b.OutputShape(0);
  return [params, positions = b.Input<int32_t>(0), rows = shape[0], head_dim = shape[1],
          table = b.Output<float>(0), stream = b.stream()](const StepContext&) {
    return cuda::RopeTable(params, positions, rows, head_dim, table, stream);
  };
}

}  // namespace milepost::runtime
