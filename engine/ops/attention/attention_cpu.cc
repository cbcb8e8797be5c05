#include <algorithm>

#include "common/status_macros.h"
#include "engine/ops/attention/attention_binding.h"
#include "engine/ops/attention/attention_cpu_kernel.h"
#include "engine/ops/attention/cached_attention_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_op.h"

namespace milepost::ops::cpu {
namespace {

using runtime::Binding;
using runtime::BoundOp;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> AttentionOf(const Binding& b) {
  MP_ASSIGN_OR_RETURN(const kernels::AttentionShape shape, AttentionShapeOf(b));
  MP_RETURN_IF_ERROR(
      b.RequireWorkspace(kernels::AttentionForwardWorkspaceBytes(shape, kDTypeOf<T>, b.threads)));
  return [shape, qkv = b.Input<T>(0), documents = b.Input<int32_t>(1), out = b.Output<T>(0),
          lse = b.Output<float>(1), workspace = b.Workspace()](const StepContext&) {
    kernels::AttentionForward<T>(shape, qkv, documents, out, lse, workspace);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> AttentionBackwardOf(const Binding& b) {
  MP_ASSIGN_OR_RETURN(const kernels::AttentionShape shape, AttentionShapeOf(b));
  MP_RETURN_IF_ERROR(
      b.RequireWorkspace(kernels::AttentionBackwardWorkspaceBytes(shape, kDTypeOf<T>, b.threads)));
  return [shape, qkv = b.Input<T>(0), out = b.Input<T>(1), lse = b.Input<float>(2),
          dout = b.Input<T>(3), documents = b.Input<int32_t>(4), dqkv = b.Output<T>(0),
          workspace = b.Workspace()](const StepContext&) {
    kernels::AttentionBackward<T>(shape, qkv, documents, out, lse, dout, dqkv, workspace);
    return absl::OkStatus();
  };
}

absl::Status CheckPlaces(int64_t first, int64_t rows, int64_t text,
                         const kernels::CachedAttentionShape& shape, int64_t texts) {
  if (first >= 0 && rows >= 1 && first + rows <= shape.positions && text >= 0 && text < texts) {
    return absl::OkStatus();
  }
  return absl::InternalError("the rows do not fit the program or its caches");
}

template <typename T>
absl::StatusOr<BoundOp> CachedRowsAttentionOf(const Binding& b) {
  MP_ASSIGN_OR_RETURN(const kernels::CachedAttentionShape shape, CachedAttentionShapeOf(b));
  const kernels::CachedRows all = {b.Input<int32_t>(1), b.Input<int32_t>(3), b.InputShape(0)[0]};
  return [shape, all, texts = b.InputShape(2)[0], qkv = b.Input<T>(0), cached = b.Output<T>(1),
          out = b.Output<T>(0),
          width = b.OutputShape(0)[1]](const StepContext& context) -> absl::Status {
    kernels::CachedRows rows = all;
    rows.count = std::min(all.count, context.position + 1);
    for (int64_t row = 0; row < rows.count; ++row) {
      if (rows.texts[row] < 0) continue;
      MP_RETURN_IF_ERROR(CheckPlaces(rows.positions[row], 1, rows.texts[row], shape, texts));
    }
    kernels::CachedRowsAttention<T>(shape, rows, qkv, cached, out);
    std::fill(out + rows.count * width, out + all.count * width, T{});
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> CachedAttentionOf(const Binding& b) {
  if (b.attributes().rows_apart) return CachedRowsAttentionOf<T>(b);
  MP_ASSIGN_OR_RETURN(const kernels::CachedAttentionShape shape, CachedAttentionShapeOf(b));
  const int64_t most = b.OutputShape(0)[0];
  MP_RETURN_IF_ERROR(b.RequireWorkspace(
      kernels::CachedAttentionWorkspaceBytes(shape, most, kDTypeOf<T>, b.threads)));
  return [shape, most, qkv = b.Input<T>(0), positions = b.Input<int32_t>(1),
          text = b.Input<int32_t>(3), texts = b.InputShape(2)[0], cached = b.Output<T>(1),
          out = b.Output<T>(0), width = b.OutputShape(0)[1],
          workspace = b.Workspace()](const StepContext& context) -> absl::Status {
    const int64_t rows = context.position + 1;
    const int64_t own = text == nullptr ? 0 : *text;
    MP_RETURN_IF_ERROR(CheckPlaces(positions[0], rows <= most ? rows : 0, own, shape, texts));
    kernels::CachedAttention<T>(shape, positions[0], rows, qkv, cached + own * shape.TextElements(),
                                out, workspace);
    std::fill(out + rows * width, out + most * width, T{});
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kAttention = {.bind = MP_BY_DTYPE(AttentionOf)};
constinit const CpuOp kAttentionBackward = {.bind = MP_BY_DTYPE(AttentionBackwardOf)};
constinit const CpuOp kCachedAttention = {.bind = MP_BY_DTYPE(CachedAttentionOf)};

}  // namespace milepost::ops::cpu
