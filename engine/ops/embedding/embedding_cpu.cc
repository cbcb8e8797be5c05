#include "engine/ops/embedding/embedding_binding.h"
#include "engine/ops/embedding/embedding_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_op.h"

namespace milepost::ops::cpu {
namespace {

using runtime::Binding;
using runtime::BoundOp;
using runtime::DropoutBinding;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> EmbeddingOf(const Binding& b) {
  const int64_t width = b.InputShape(1)[1];
  const kernels::EmbeddingTables<T> tables{b.Input<T>(1), b.Input<T>(2), b.Input<T>(4)};
  return [rows = EmbeddingRowsOf(b, 3, 5), tables, x = b.Output<T>(0), width,
          dropout = DropoutBinding(b, width)](const StepContext& context) {
    kernels::EmbeddingForward<T>(rows, tables, width, dropout.At(context), x);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> EmbeddingBackwardOf(const Binding& b) {
  const int64_t width = b.InputShape(1)[1];
  return [rows = EmbeddingRowsOf(b, 2, 3), dy = b.Input<T>(1), width, wte = TableGradientOf(b, 0),
          wpe = TableGradientOf(b, 1), wse = TableGradientOf(b, 2),
          dropout = DropoutBinding(b, width)](const StepContext& context) {
    kernels::EmbeddingBackward<T>(rows, dy, width, dropout.At(context), wte.At(context),
                                  wpe.At(context), wse.At(context));
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kEmbedding = {.bind = MP_BY_DTYPE(EmbeddingOf)};
constinit const CpuOp kEmbeddingBackward = {.bind = MP_BY_DTYPE(EmbeddingBackwardOf)};

}  // namespace milepost::ops::cpu
