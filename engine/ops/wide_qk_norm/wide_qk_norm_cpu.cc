#include <algorithm>
#include <cstring>

#include "common/status_macros.h"
#include "engine/kernels/cpu/parallel.h"
#include "engine/ops/norm/rmsnorm_cpu_kernel.h"
#include "engine/ops/wide_qk_norm/wide_qk_norm_binding.h"
#include "engine/runtime/cpu/cpu_op.h"

namespace milepost::ops::cpu {
namespace {

using runtime::Binding;
using runtime::BoundOp;
using runtime::StepContext;

// The values are passed on.
template <typename T>
void CopyValues(const WideQkNormColumns& columns, const T* from, T* to) {
  if (from == to) return;
  const int64_t stride = columns.q.stride;
  const int64_t grain = std::max<int64_t>(1, 8192 / columns.value_width);
  kernels::ParallelFor(0, columns.q.rows, grain, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t at = row * stride + columns.values;
      std::memcpy(static_cast<void*>(to + at), from + at, columns.value_width * sizeof(T));
    }
  });
}

template <typename T>
absl::StatusOr<BoundOp> WideQkNormOf(const Binding& b) {
  return [columns = WideQkNormColumns(b), qkv = b.Input<T>(0), gamma_q = b.Input<T>(1),
          gamma_k = b.Input<T>(2), out = b.Output<T>(0), rstd_q = b.Output<float>(1),
          rstd_k = b.Output<float>(2)](const StepContext&) {
    const int64_t keys = columns.q.width;
    kernels::RmsNormForward<T>(columns.q, qkv, gamma_q, out, rstd_q);
    kernels::RmsNormForward<T>(columns.k, qkv + keys, gamma_k, out + keys, rstd_k);
    CopyValues(columns, qkv, out);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> WideQkNormBackwardOf(const Binding& b) {
  const WideQkNormColumns columns(b);
  MP_RETURN_IF_ERROR(
      b.RequireWorkspace(kernels::RmsNormBackwardWorkspaceBytes(columns.q.rows, columns.q.width)));
  // Of q, then of k.
  const auto args = [&b](int i, int64_t column) {
    return kernels::RmsNormBackwardArgs<T>{.x = b.Input<T>(0) + column,
                                           .gamma = b.Input<T>(1 + i),
                                           .rstd = b.Input<float>(3 + i),
                                           .dy = b.Input<T>(5) + column,
                                           .dx = b.Output<T>(0) + column,
                                           .dgamma = b.Output<float>(1 + i)};
  };
  return [columns, of_q = args(0, 0), of_k = args(1, columns.q.width),
          adds_q = b.OutputAccumulation(1), adds_k = b.OutputAccumulation(2),
          workspace = b.Workspace()](const StepContext& context) {
    kernels::RmsNormBackwardArgs<T> q = of_q, k = of_k;
    q.accumulate = adds_q.At(context);
    k.accumulate = adds_k.At(context);
    kernels::RmsNormBackward<T>(columns.q, q, workspace);
    kernels::RmsNormBackward<T>(columns.k, k, workspace);
    CopyValues(columns, q.dy, q.dx);
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kWideQkNorm = {.bind = MP_BY_DTYPE(WideQkNormOf)};
constinit const CpuOp kWideQkNormBackward = {.bind = MP_BY_DTYPE(WideQkNormBackwardOf)};

}  // namespace milepost::ops::cpu
