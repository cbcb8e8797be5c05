#include "engine/kernels/cuda/elementwise.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> AddOf(const CudaBinding& b) {
  return [x = b.Input<T>(0), y = b.Input<T>(1), n = graph::Elements(b.InputShape(0)),
          sum = b.Output<T>(0), stream = b.stream()](const StepContext&) {
    return kernels::cuda::Add<T>(x, y, n, sum, stream);
  };
}

}  // namespace

constinit const CudaOp kAdd = {.bind = MP_BY_DTYPE(AddOf)};

}  // namespace milepost::ops::gpu
