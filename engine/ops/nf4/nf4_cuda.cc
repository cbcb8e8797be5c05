#include <vector>

#include "common/status_macros.h"
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
  struct Part {
    const uint8_t* packed;
    int64_t elements;
    T* out;
  };
  std::vector<Part> parts;
  for (int i = 0; i < static_cast<int>(b.planned.op.outputs.size()); ++i) {
    parts.push_back({b.Input<uint8_t>(i), graph::Elements(b.OutputShape(i)), b.Output<T>(i)});
  }
  return [parts = std::move(parts), stream = b.stream()](const StepContext&) -> absl::Status {
    for (const Part& part : parts) {
      MP_RETURN_IF_ERROR(cuda::UnpackNf4(part.packed, part.elements, part.out, stream));
    }
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CudaOp kUnpackNf4 = {.bind = MP_BY_DTYPE(UnpackNf4Of)};

}  // namespace milepost::ops::gpu
