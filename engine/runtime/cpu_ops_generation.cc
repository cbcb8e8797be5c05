// Attention over cached keys and values on the CPU.
#include <algorithm>

#include "common/status_macros.h"
#include "engine/kernels/cpu/attention.h"
#include "engine/kernels/cpu/cached_attention.h"
#include "engine/runtime/cpu_ops.h"

namespace milepost::runtime {
namespace {

template <typename T>
absl::StatusOr<BoundOp> CachedAttentionOf(const Binding& b) {
  const graph::Attributes& a = b.attributes();
  const graph::Shape& cache = b.InputShape(2);
  const kernels::CachedAttentionShape shape{
      .positions = cache[2], .heads = a.heads, .head_dim = cache[3], .kv_heads = a.kv_heads};
  MP_RETURN_IF_ERROR(kernels::CheckAttentionShape({.batch = 1,
                                                   .sequence = shape.positions,
                                                   .heads = shape.heads,
                                                   .head_dim = shape.head_dim,
                                                   .kv_heads = shape.kv_heads}));
  const int64_t most = b.OutputShape(0)[0];
  MP_RETURN_IF_ERROR(b.RequireWorkspace(static_cast<int64_t>(
      kernels::CachedAttentionWorkspaceBytes(shape, most, kernels::kDTypeOf<T>, b.threads))));
  return [shape, most, qkv = b.Input<T>(0), positions = b.Input<int32_t>(1),
          cached = b.Output<T>(1), out = b.Output<T>(0), width = b.OutputShape(0)[1],
          workspace = b.Workspace()](const StepContext& context) -> absl::Status {
    const int64_t first = positions[0];
    const int64_t rows = context.position + 1;
    if (first < 0 || rows < 1 || rows > most || first + rows > shape.positions) {
      return absl::InternalError("the rows do not fit the program or its caches");
    }
    kernels::CachedAttention<T>(shape, first, rows, qkv, cached, out, workspace);
    std::fill(out + rows * width, out + most * width, T{});
    return absl::OkStatus();
  };
}

}  // namespace

absl::StatusOr<BoundOp> BindCachedAttention(const Binding& b) {
  return MP_BIND_BY_DTYPE(CachedAttentionOf, b);
}

}  // namespace milepost::runtime
