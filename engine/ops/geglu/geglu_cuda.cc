#include "engine/ops/geglu/geglu_cuda_kernel.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using graph::OpKind;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> GeGluOf(const CudaBinding& b) {
  if (b.planned.op.kind == OpKind::kGeGlu) {
    const graph::Shape& shape = b.OutputShape(0);
    return [x = b.Input<T>(0), y = b.Output<T>(0), rows = shape[0], width = shape[1],
            stream = b.stream()](const StepContext&) {
      return cuda::GeGluForward<T>(x, rows, width, y, stream);
    };
  }
  const graph::Shape& shape = b.InputShape(1);
  return [x = b.Input<T>(0), dy = b.Input<T>(1), dx = b.Output<T>(0), rows = shape[0],
          width = shape[1], stream = b.stream()](const StepContext&) {
    return cuda::GeGluBackward<T>(x, dy, rows, width, dx, stream);
  };
}

}  // namespace

constinit const CudaOp kGeGlu = {.bind = MP_BY_DTYPE(GeGluOf)};
constinit const CudaOp kGeGluBackward = {.bind = MP_BY_DTYPE(GeGluOf)};

}  // namespace milepost::ops::gpu
