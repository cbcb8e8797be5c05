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
absl::StatusOr<BoundOp> TokenRowsOf(const Binding& b) {
  const graph::Shape& table = b.InputShape(1);
  return [tokens = b.Input<int32_t>(0), rows = b.OutputShape(0)[0], wte = b.Input<T>(1),
          own = OwnTokens(b, table[0]), width = table[1], x = b.Output<T>(0)](const StepContext&) {
    kernels::TokenRows<T>(tokens, rows, wte, own.first, own.count, width, x);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> EmbeddingOf(const Binding& b) {
  if (ReadRowsAreAll(b)) return [](const StepContext&) { return absl::OkStatus(); };
  const int64_t width = b.InputShape(1)[1];
  const kernels::EmbeddingTables<T> tables = EmbeddingTablesOf<T>(b);
  return [rows = ForwardRowsOf(b), tables, x = b.Output<T>(0), width,
          dropout = DropoutBinding(b, width)](const StepContext& context) {
    kernels::EmbeddingForward<T>(rows, tables, width, dropout.At(context), x);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> EmbeddingBackwardOf(const Binding& b) {
  const int64_t width = b.InputShape(1)[1];
  return [rows = BackwardRowsOf(b), dy = b.Input<T>(1), width, wte = TableGradientOf(b, 0),
          wpe = TableGradientOf(b, 1), wse = TableGradientOf(b, 2),
          dropout = DropoutBinding(b, width)](const StepContext& context) {
    kernels::EmbeddingBackward<T>(rows, dy, width, dropout.At(context), wte.At(context),
                                  wpe.At(context), wse.At(context));
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kTokenRows = {.bind = MP_BY_DTYPE(TokenRowsOf)};
constinit const CpuOp kEmbedding = {.bind = MP_BY_DTYPE(EmbeddingOf)};
constinit const CpuOp kEmbeddingBackward = {.bind = MP_BY_DTYPE(EmbeddingBackwardOf)};

}  // namespace milepost::ops::cpu
