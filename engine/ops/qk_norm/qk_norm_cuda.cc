#include "common/status_macros.h"
#include "engine/ops/qk_norm/qk_norm_binding.h"
#include "engine/ops/qk_norm/qk_norm_cuda_kernel.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> QkNormOf(const CudaBinding& b) {
  return [shape = QkNormShapeOf(b), qkv = b.Input<T>(0), gamma_q = b.Input<T>(1),
          gamma_k = b.Input<T>(2), out = b.Output<T>(0), stream = b.stream()](const StepContext&) {
    return cuda::QkNormForward<T>(shape, qkv, gamma_q, gamma_k, out, stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> QkNormBackwardOf(const CudaBinding& b) {
  const kernels::QkNormShape shape = QkNormShapeOf(b);
  MP_RETURN_IF_ERROR(b.RequireWorkspace(cuda::QkNormBackwardWorkspaceBytes(shape)));
  return [shape, args = QkNormBackwardOperands<T>(b), workspace = b.Workspace(),
          stream = b.stream()](const StepContext& context) {
    return cuda::QkNormBackward<T>(shape, args.At(context), workspace, stream);
  };
}

}  // namespace

constinit const CudaOp kQkNorm = {.bind = MP_BY_DTYPE(QkNormOf)};
constinit const CudaOp kQkNormBackward = {.bind = MP_BY_DTYPE(QkNormBackwardOf)};

}  // namespace milepost::ops::gpu
