#include "engine/ops/pooling/pooling_binding.h"
#include "engine/ops/pooling/pooling_cuda_kernel.h"
#include "engine/runtime/executor/image_ops.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using graph::OpKind;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> MaxPoolOf(const CudaBinding& b) {
  return [spec = PoolOf(b, b.InputShape(0)), x = b.Input<T>(0), y = b.Output<T>(0),
          winners = b.Output<uint8_t>(1), stream = b.stream()](const StepContext&) {
    return cuda::MaxPoolForward(spec, x, y, winners, stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> MaxPoolBackwardOf(const CudaBinding& b) {
  return [spec = PoolOf(b, b.OutputShape(0)), winners = b.Input<uint8_t>(0), dy = b.Input<T>(1),
          dy2 = b.Input<T>(2), dx = b.Output<T>(0), stream = b.stream()](const StepContext&) {
    return cuda::MaxPoolBackward(spec, winners, dy, dy2, dx, stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> AveragePoolOf(const CudaBinding& b) {
  const bool forward = b.planned.op.kind == OpKind::kAveragePool;
  const graph::Shape& images = forward ? b.InputShape(0) : b.OutputShape(0);
  return [forward, batch = images[0], pixels = images[1] * images[2], channels = images[3],
          in = b.Input<T>(0), out = b.Output<T>(0), stream = b.stream()](const StepContext&) {
    return forward ? cuda::AveragePoolForward(in, batch, pixels, channels, out, stream)
                   : cuda::AveragePoolBackward(in, batch, pixels, channels, out, stream);
  };
}

}  // namespace

constinit const CudaOp kMaxPool = {.bind = MP_F32_OR_BF16(MaxPoolOf)};
constinit const CudaOp kMaxPoolBackward = {.bind = MP_F32_OR_BF16(MaxPoolBackwardOf)};
constinit const CudaOp kAveragePool = {.bind = MP_F32_OR_BF16(AveragePoolOf)};
constinit const CudaOp kAveragePoolBackward = {.bind = MP_F32_OR_BF16(AveragePoolOf)};

}  // namespace milepost::ops::gpu
