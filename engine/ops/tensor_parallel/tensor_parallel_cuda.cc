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

// Nothing is added where `added` is null.
template <typename T>
absl::Status CopyOrAdd(const T* x, const T* added, int64_t n, T* y, cudaStream_t stream) {
  return added != nullptr ? cuda::Add<T>(x, added, n, y, stream) : cuda::Cast(x, n, y, stream);
}

template <typename T>
absl::StatusOr<BoundOp> TensorScatterOf(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(const DeviceCall call, runtime::DeviceCallOf(b));
  const int64_t n = graph::Elements(b.OutputShape(0)), width = b.OutputShape(0).back();
  return [call, own = b.Input<T>(0) + b.tensor_rank * n, added = b.Input<T>(1),
          bias = b.Input<T>(2), y = b.Output<T>(0), n, width](const StepContext&) {
    MP_RETURN_IF_ERROR(call.Enqueue());
    MP_RETURN_IF_ERROR(CopyOrAdd<T>(own, added, n, y, call.stream));
    if (bias != nullptr) return cuda::AddBias(bias, n / width, width, y, call.stream);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> TensorRowsOf(const CudaBinding& b) {
  const int64_t n = graph::Elements(b.OutputShape(0));
  return
      [own = b.Input<T>(0) + b.tensor_rank * n, added = b.Input<T>(1), y = b.Output<T>(0), n,
       stream = b.stream()](const StepContext&) { return CopyOrAdd<T>(own, added, n, y, stream); };
}

template <typename T>
absl::StatusOr<BoundOp> TensorGatherOf(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(const DeviceCall call, runtime::DeviceCallOf(b));
  const int64_t n = graph::Elements(b.InputShape(0));
  return
      [call, x = b.Input<T>(0), n, own = b.Output<T>(0) + b.tensor_rank * n](const StepContext&) {
        MP_RETURN_IF_ERROR(cuda::Cast(x, n, own, call.stream));
        return call.Enqueue();
      };
}

// What is known of rows of logits is fp32, whatever the model computes in.
absl::StatusOr<BoundOp> BindTensorGather(const CudaBinding& b) {
  const graph::Value& x = b.program.graph.values[b.planned.op.inputs[0]];
  return x.dtype == DType::kF32 ? TensorGatherOf<float>(b) : TensorGatherOf<bf16>(b);
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

constinit const CudaOp kTensorReduce = {.bind = MP_F32_OR_BF16(TensorReduceOf)};
constinit const CudaOp kTensorScatter = {.bind = MP_F32_OR_BF16(TensorScatterOf)};
constinit const CudaOp kTensorRows = {.bind = MP_F32_OR_BF16(TensorRowsOf)};
constinit const CudaOp kTensorGather = {.bind = BindTensorGather};
constinit const CudaOp kBiasBackward = {.bind = MP_F32_OR_BF16(BiasBackwardOf)};

}  // namespace milepost::ops::gpu
