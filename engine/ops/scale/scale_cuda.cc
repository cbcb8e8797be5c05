#include "engine/kernels/cuda/elementwise.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> ScaleOf(const CudaBinding& b) {
  return [x = b.Input<T>(0), n = graph::Elements(b.InputShape(0)), y = b.Output<T>(0),
          factor = static_cast<float>(b.attributes().scale), stream = b.stream()](
             const StepContext&) { return cuda::ScaleTo<T>(x, n, factor, y, stream); };
}

}  // namespace

constinit const CudaOp kScale = {.bind = MP_BY_DTYPE(ScaleOf)};

}  // namespace milepost::ops::gpu
