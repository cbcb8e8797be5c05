#include "common/status_macros.h"
#include "engine/ops/images/images_binding.h"
#include "engine/ops/pooling/pooling_cuda_kernel.h"
#include "engine/runtime/executor/image_ops.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::ImageRows;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> NormalizeImagesOf(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(const T* uploaded, b.services.tables->Upload(ChannelTable<T>(b)));
  return [x = b.Input<uint8_t>(0), y = b.Output<T>(0), uploaded,
          pixels = ImageRows(b.InputShape(0)).rows, stream = b.stream()](const StepContext&) {
    return cuda::LookUpChannels(x, pixels, graph::kImageChannels, uploaded, y, stream);
  };
}

}  // namespace

constinit const CudaOp kNormalizeImages = {.bind = MP_F32_OR_BF16(NormalizeImagesOf)};

}  // namespace milepost::ops::gpu
