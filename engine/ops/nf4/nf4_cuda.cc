#include "common/status_macros.h"
#include "engine/ops/nf4/nf4_binding.h"
#include "engine/ops/nf4/nf4_cuda_kernel.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> UnpackNf4Of(const CudaBinding& b) {
  return [parts = Nf4PartsOf<T>(b), stream = b.stream()](const StepContext&) -> absl::Status {
    for (const Nf4Part<T>& part : parts) {
      MP_RETURN_IF_ERROR(cuda::UnpackNf4(part.packed, part.elements, part.out, stream));
    }
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CudaOp kUnpackNf4 = {.bind = MP_BY_DTYPE(UnpackNf4Of)};

}  // namespace milepost::ops::gpu
