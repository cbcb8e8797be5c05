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
absl::StatusOr<BoundOp> TokenRowsOf(const CudaBinding& b) {
  const graph::Shape& table = b.InputShape(1);
  return [tokens = b.Input<int32_t>(0), rows = b.OutputShape(0)[0], wte = b.Input<T>(1),
          own = OwnTokens(b, table[0]), width = table[1], x = b.Output<T>(0),
          stream = b.stream()](const StepContext&) {
    return cuda::TokenRows<T>(tokens, rows, wte, own.first, own.count, width, x, stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> EmbeddingOf(const CudaBinding& b) {
  if (ReadRowsAreAll(b)) return [](const StepContext&) { return absl::OkStatus(); };
  const int64_t width = b.InputShape(1)[1];
  const kernels::EmbeddingTables<T> tables = EmbeddingTablesOf<T>(b);
  return [rows = ForwardRowsOf(b), tables, x = b.Output<T>(0), width, dropout = b.Dropout(width),
          stream = b.stream()](const StepContext&) {
    return cuda::EmbeddingForward<T>(rows, tables, width, dropout, x, stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> EmbeddingBackwardOf(const CudaBinding& b) {
  const graph::Shape& dy = b.InputShape(1);
  MP_RETURN_IF_ERROR(b.RequireWorkspace(cuda::EmbeddingBackwardWorkspaceBytes(dy[0], dy[1])));
  return [rows = BackwardRowsOf(b), dy = b.Input<T>(1), width = dy[1], wte = TableGradientOf(b, 0),
          wpe = TableGradientOf(b, 1), wse = TableGradientOf(b, 2), dropout = b.Dropout(dy[1]),
          workspace = b.Workspace(), stream = b.stream()](const StepContext& context) {
    return cuda::EmbeddingBackward<T>(rows, dy, width, dropout, wte.At(context), wpe.At(context),
                                      wse.At(context), workspace, stream);
  };
}

}  // namespace

constinit const CudaOp kTokenRows = {.bind = MP_BY_DTYPE(TokenRowsOf)};
constinit const CudaOp kEmbedding = {.bind = MP_BY_DTYPE(EmbeddingOf)};
constinit const CudaOp kEmbeddingBackward = {.bind = MP_BY_DTYPE(EmbeddingBackwardOf)};

}  // namespace milepost::ops::gpu
