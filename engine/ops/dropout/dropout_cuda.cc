#include "common/status_macros.h"
#include "engine/kernels/cuda/elementwise.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> DropoutOf(const CudaBinding& b) {
  return [x = b.Input<T>(0), sum = b.Input<T>(1), n = graph::Elements(b.InputShape(0)),
          y = b.Output<T>(0), dropout = b.Dropout(b.InputShape(0)[1]),
          stream = b.stream()](const StepContext&) -> absl::Status {
    MP_RETURN_IF_ERROR(cuda::Dropout<T>(x, n, dropout, y, stream));
    return sum == nullptr ? absl::OkStatus() : cuda::Add<T>(y, sum, n, y, stream);
  };
}

}  // namespace

constinit const CudaOp kDropout = {.bind = MP_BY_DTYPE(DropoutOf)};

}  // namespace milepost::ops::gpu
