#include <utility>

#include "common/status_macros.h"
#include "engine/kernels/cuda/elementwise.h"
#include "engine/kernels/cuda/rows.h"
#include "engine/ops/contract/sums.h"
#include "engine/ops/qk_norm/qk_norm_cuda_kernel.h"
#include "engine/runtime/gpu/backend/cuda_op.h"
#include "engine/runtime/gpu/backend/device_call.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::DeviceCall;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> TensorReduceOf(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(const DeviceCall call, runtime::DeviceCallOf(b));
  const int64_t n = graph::Elements(b.OutputShape(0)), width = b.OutputShape(0).back();
  return [call, x = b.Input<T>(0), added = b.Input<T>(1), bias = b.Input<T>(2), y = b.Output<T>(0),
          n, width](const StepContext&) {
    if (x != y) MP_RETURN_IF_ERROR(cuda::Cast(x, n, y, call.stream));
    MP_RETURN_IF_ERROR(call.Enqueue());
    if (added != nullptr) MP_RETURN_IF_ERROR(cuda::Add<T>(y, added, n, y, call.stream));
    if (bias != nullptr) return cuda::AddBias(bias, n / width, width, y, call.stream);
    return absl::OkStatus();
  };
}

absl::StatusOr<BoundOp> SumOfGradientParts(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(BoundOp sum, TensorReduceOf<float>(b));
  return [sum = std::move(sum), y = b.Output<float>(0), n = graph::Elements(b.OutputShape(0)),
          gradient = b.Output<float>(1), accumulation = b.OutputAccumulation(1),
          stream = b.stream()](const StepContext& context) {
    MP_RETURN_IF_ERROR(sum(context));
    return accumulation.At(context) ? cuda::Accumulate(y, n, gradient, stream)
                                    : cuda::Cast(y, n, gradient, stream);
  };
}

absl::StatusOr<BoundOp> BindTensorReduce(const CudaBinding& b) {
  if (b.planned.op.outputs.size() > 1) return SumOfGradientParts(b);
  return MP_BIND_F32_OR_BF16(TensorReduceOf, b);
}

absl::StatusOr<BoundOp> BindTensorGather(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(const DeviceCall call, runtime::DeviceCallOf(b));
  const int64_t n = graph::Elements(b.InputShape(0));
  return [call, x = b.Input<float>(0), n,
          own = b.Output<float>(0) + b.tensor_rank * n](const StepContext&) {
    MP_RETURN_IF_ERROR(cuda::Cast(x, n, own, call.stream));
    return call.Enqueue();
  };
}

template <typename T>
absl::StatusOr<BoundOp> BiasBackwardOf(const CudaBinding& b) {
  const graph::Shape& shape = b.InputShape(0);
  MP_RETURN_IF_ERROR(b.RequireWorkspace(cuda::BiasGradientWorkspaceBytes(shape[0], shape[1])));
  return [dy = b.Input<T>(0), rows = shape[0], width = shape[1], dbias = b.Output<float>(0),
          accumulation = b.OutputAccumulation(0), workspace = b.Workspace(),
          stream = b.stream()](const StepContext& context) {
    return cuda::BiasGradient<T>(dy, rows, width, /*row_stride=*/width, accumulation.At(context),
                                 dbias, workspace, stream);
  };
}

}  // namespace

constinit const CudaOp kTensorReduce = {.bind = BindTensorReduce};
constinit const CudaOp kTensorGather = {.bind = BindTensorGather};
constinit const CudaOp kBiasBackward = {.bind = MP_F32_OR_BF16(BiasBackwardOf)};

}  // namespace milepost::ops::gpu
