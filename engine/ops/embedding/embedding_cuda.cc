#include "common/status_macros.h"
#include "engine/ops/embedding/embedding_binding.h"
#include "engine/ops/embedding/embedding_cuda_kernel.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::OpBinding;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> EmbeddingOf(const CudaBinding& b) {
  const int64_t width = b.InputShape(1)[1];
  const kernels::EmbeddingTables<T> tables{b.Input<T>(1), b.Input<T>(2), b.Input<T>(4)};
  return [rows = EmbeddingRowsOf(b, 3, 5), tables, x = b.Output<T>(0), width,
          dropout = b.Dropout(width), stream = b.stream()](const StepContext&) {
    return cuda::EmbeddingForward<T>(rows, tables, width, dropout, x, stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> EmbeddingBackwardOf(const CudaBinding& b) {
  const graph::Shape& dy = b.InputShape(1);
  MP_RETURN_IF_ERROR(b.RequireWorkspace(cuda::EmbeddingBackwardWorkspaceBytes(dy[0], dy[1])));
  return [rows = EmbeddingRowsOf(b, 2, 3), dy = b.Input<T>(1), width = dy[1],
          wte = TableGradientOf(b, 0), wpe = TableGradientOf(b, 1), wse = TableGradientOf(b, 2),
          dropout = b.Dropout(dy[1]), workspace = b.Workspace(),
          stream = b.stream()](const StepContext& context) {
    return cuda::EmbeddingBackward<T>(rows, dy, width, dropout, wte.At(context), wpe.At(context),
                                      wse.At(context), workspace, stream);
  };
}

}  // namespace

constinit const CudaOp kEmbedding = {.bind = MP_BY_DTYPE(EmbeddingOf)};
constinit const CudaOp kEmbeddingBackward = {.bind = MP_BY_DTYPE(EmbeddingBackwardOf)};

}  // namespace milepost::ops::gpu
