#include "common/status_macros.h"
#include "engine/ops/images/images_binding.h"
#include "engine/ops/patches/patches_binding.h"
#include "engine/ops/patches/patches_cuda_kernel.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> ImagePatchesOf(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(const T* table, b.services.tables->Upload(ChannelTable<T>(b)));
  return [grid = PatchGridOf(b), images = b.Input<uint8_t>(0), table, rows = b.Output<T>(0),
          stream = b.stream()](const StepContext&) {
    return cuda::ImagePatches<T>(grid, images, table, rows, stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> PatchTokensOf(const CudaBinding& b) {
  return [tokens = TokenRowsOf(b.OutputShape(0), b.attributes().batch), rows = b.Input<T>(0),
          cls = b.Input<T>(1), positions = b.Input<T>(2), x = b.Output<T>(0),
          stream = b.stream()](const StepContext&) {
    return cuda::PatchTokens<T>(tokens, rows, cls, positions, x, stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> PatchTokensBackwardOf(const CudaBinding& b) {
  return [tokens = TokenRowsOf(b.InputShape(0), b.attributes().batch), dx = b.Input<T>(0),
          drows = b.Output<T>(0), cls = TokenSumOf(b, 1), positions = TokenSumOf(b, 2),
          stream = b.stream()](const StepContext& context) {
    return cuda::PatchTokensBackward<T>(tokens, dx, drows, cls.At(context), positions.At(context),
                                        stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> FirstRowsOf(const CudaBinding& b) {
  return [tokens = TokenRowsOf(b.InputShape(0), b.OutputShape(0)[0]), x = b.Input<T>(0),
          y = b.Output<T>(0), stream = b.stream()](const StepContext&) {
    return cuda::FirstRows<T>(tokens, x, y, stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> FirstRowsBackwardOf(const CudaBinding& b) {
  return [tokens = TokenRowsOf(b.OutputShape(0), b.InputShape(0)[0]), dy = b.Input<T>(0),
          dx = b.Output<T>(0), stream = b.stream()](const StepContext&) {
    return cuda::FirstRowsBackward<T>(tokens, dy, dx, stream);
  };
}

}  // namespace

constinit const CudaOp kImagePatches = {.bind = MP_BY_DTYPE(ImagePatchesOf)};
constinit const CudaOp kPatchTokens = {.bind = MP_BY_DTYPE(PatchTokensOf)};
constinit const CudaOp kPatchTokensBackward = {.bind = MP_BY_DTYPE(PatchTokensBackwardOf)};
constinit const CudaOp kFirstRows = {.bind = MP_BY_DTYPE(FirstRowsOf)};
constinit const CudaOp kFirstRowsBackward = {.bind = MP_BY_DTYPE(FirstRowsBackwardOf)};

}  // namespace milepost::ops::gpu
