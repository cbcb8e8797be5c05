#include "common/status_macros.h"
#include "engine/ops/qk_norm/qk_norm_binding.h"
#include "engine/ops/qk_norm/qk_norm_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_op.h"

namespace milepost::ops::cpu {
namespace {

using runtime::Binding;
using runtime::BoundOp;
using runtime::StepContext;

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
  MP_RETURN_IF_ERROR(
      b.RequireWorkspace(kernels::QkNormBackwardWorkspaceBytes(shape.rows, shape.head_dim)));
  return [shape, args = QkNormBackwardOperands<T>(b),
          workspace = b.Workspace()](const StepContext& context) {
    kernels::QkNormBackward<T>(shape, args.At(context), workspace);
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kQkNorm = {.bind = MP_BY_DTYPE(QkNormOf)};
constinit const CpuOp kQkNormBackward = {.bind = MP_BY_DTYPE(QkNormBackwardOf)};

}  // namespace milepost::ops::cpu
