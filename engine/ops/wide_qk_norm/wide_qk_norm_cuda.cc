#include "common/status_macros.h"
#include "engine/kernels/cuda/rows.h"
#include "engine/ops/norm/norm_cuda_kernel.h"
#include "engine/ops/wide_qk_norm/wide_qk_norm_binding.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using kernels::RmsNormShape;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::StepContext;

// The values are passed on.
template <typename T>
absl::Status CopyValues(const WideQkNormColumns& columns, const T* from, T* to,
                        cudaStream_t stream) {
  if (from == to) return absl::OkStatus();
  return cuda::CopyColumns<T>(from + columns.values, columns.q.rows, columns.value_width,
                              columns.q.stride, to + columns.values, stream);
}

// Of q (part 0) or of k (part 1), which begins at `column` of qkv.
template <typename T>
cuda::NormForwardArgs<T> ForwardArgs(const CudaBinding& b, const RmsNormShape& shape, int part,
                                     int64_t column) {
  cuda::NormForwardArgs<T> args;
  args.x = b.Input<T>(0) + column;
  args.gamma = b.Input<T>(1 + part);
  args.gamma_offset = shape.gamma_offset;
  args.y = b.Output<T>(0) + column;
  args.rstd = b.Output<float>(1 + part);
  args.rows = shape.rows;
  args.width = shape.width;
  args.stride = shape.stride;
  args.epsilon = shape.epsilon;
  return args;
}

template <typename T>
cuda::NormBackwardArgs<T> BackwardArgs(const CudaBinding& b, const RmsNormShape& shape, int part,
                                       int64_t column) {
  cuda::NormBackwardArgs<T> args;
  args.x = b.Input<T>(0) + column;
  args.gamma = b.Input<T>(1 + part);
  args.gamma_offset = shape.gamma_offset;
  args.rstd = b.Input<float>(3 + part);
  args.dy = b.Input<T>(5) + column;
  args.dx = b.Output<T>(0) + column;
  args.dgamma = b.Output<float>(1 + part);
  args.rows = shape.rows;
  args.width = shape.width;
  args.stride = shape.stride;
  return args;
}

template <typename T>
absl::StatusOr<BoundOp> WideQkNormOf(const CudaBinding& b) {
  const WideQkNormColumns columns(b);
  return [columns, of_q = ForwardArgs<T>(b, columns.q, 0, 0),
          of_k = ForwardArgs<T>(b, columns.k, 1, columns.q.width),
          stream = b.stream()](const StepContext&) {
    MP_RETURN_IF_ERROR(cuda::NormForward<T>(of_q, stream));
    MP_RETURN_IF_ERROR(cuda::NormForward<T>(of_k, stream));
    return CopyValues<T>(columns, of_q.x, of_q.y, stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> WideQkNormBackwardOf(const CudaBinding& b) {
  const WideQkNormColumns columns(b);
  MP_RETURN_IF_ERROR(
      b.RequireWorkspace(cuda::NormBackwardWorkspaceBytes(columns.q.rows, columns.q.width)));
  return [columns, of_q = BackwardArgs<T>(b, columns.q, 0, 0),
          of_k = BackwardArgs<T>(b, columns.k, 1, columns.q.width),
          adds_q = b.OutputAccumulation(1), adds_k = b.OutputAccumulation(2),
          workspace = b.Workspace(), stream = b.stream()](const StepContext& context) {
    cuda::NormBackwardArgs<T> q = of_q, k = of_k;
    q.accumulate = adds_q.At(context);
    k.accumulate = adds_k.At(context);
    MP_RETURN_IF_ERROR(cuda::NormBackward<T>(q, workspace, stream));
    MP_RETURN_IF_ERROR(cuda::NormBackward<T>(k, workspace, stream));
    return CopyValues<T>(columns, q.dy, q.dx, stream);
  };
}

}  // namespace

constinit const CudaOp kWideQkNorm = {.bind = MP_BY_DTYPE(WideQkNormOf)};
constinit const CudaOp kWideQkNormBackward = {.bind = MP_BY_DTYPE(WideQkNormBackwardOf)};

}  // namespace milepost::ops::gpu
