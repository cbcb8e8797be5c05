#include "engine/ops/gelu/gelu_cuda_kernel.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using graph::OpKind;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> GeluOf(const CudaBinding& b) {
  const int64_t n = graph::Elements(b.InputShape(0));
  const bool exact = b.attributes().exact;
  if (b.planned.op.kind == OpKind::kGelu) {
    return [x = b.Input<T>(0), n, exact, y = b.Output<T>(0), stream = b.stream()](
               const StepContext&) { return cuda::GeluForward<T>(x, n, exact, y, stream); };
  }
  return [x = b.Input<T>(0), dy = b.Input<T>(1), n, exact, dx = b.Output<T>(0),
          stream = b.stream()](const StepContext&) {
    return cuda::GeluBackward<T>(x, dy, n, exact, dx, stream);
  };
}

}  // namespace

constinit const CudaOp kGelu = {.bind = MP_BY_DTYPE(GeluOf)};
constinit const CudaOp kGeluBackward = {.bind = MP_BY_DTYPE(GeluOf)};

}  // namespace milepost::ops::gpu
