#include "engine/ops/swiglu/swiglu_cuda_kernel.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using graph::OpKind;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> SwiGluOf(const CudaBinding& b) {
  if (b.planned.op.kind == OpKind::kSwiGlu) {
    const graph::Shape& shape = b.OutputShape(0);
    return [x = b.Input<T>(0), y = b.Output<T>(0), rows = shape[0], width = shape[1],
            stream = b.stream()](const StepContext&) {
      return cuda::SwiGluForward<T>(x, rows, width, y, stream);
    };
  }
  const graph::Shape& shape = b.InputShape(1);
  return [x = b.Input<T>(0), dy = b.Input<T>(1), dx = b.Output<T>(0), rows = shape[0],
          width = shape[1], stream = b.stream()](const StepContext&) {
    return cuda::SwiGluBackward<T>(x, dy, rows, width, dx, stream);
  };
}

}  // namespace

constinit const CudaOp kSwiGlu = {.bind = MP_BY_DTYPE(SwiGluOf)};
constinit const CudaOp kSwiGluBackward = {.bind = MP_BY_DTYPE(SwiGluOf)};

}  // namespace milepost::ops::gpu
