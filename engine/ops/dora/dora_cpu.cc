#include <algorithm>
#include <vector>

#include "common/status_macros.h"
#include "engine/kernels/cpu/matmul.h"
#include "engine/ops/dora/dora_binding.h"
#include "engine/ops/dora/dora_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_op.h"

namespace milepost::ops::cpu {
namespace {

using kernels::MatmulSpec;
using runtime::Binding;
using runtime::BoundOp;
using runtime::StepContext;

std::vector<MatmulSpec> DoraMatmulSpecs(const plan::StepPlan&, const plan::Program& program,
                                        const graph::Op& op) {
  const DoraProducts products(program.graph, op);
  return {products.with_weight, products.with_itself};
}

// Its workspace holds both products, and behind them their scratch.
template <typename T>
absl::StatusOr<BoundOp> DoraNormsOf(const Binding& b) {
  const DoraProducts products(b.program.graph, b.planned.op);
  size_t scratch = 0;
  for (const MatmulSpec& spec : {products.with_weight, products.with_itself}) {
    MP_ASSIGN_OR_RETURN(const size_t bytes, b.matmuls.WorkspaceBytes(spec));
    scratch = std::max(scratch, bytes);
  }
  const int64_t before = b.BytesBeforeScratch();
  MP_RETURN_IF_ERROR(b.RequireWorkspace(before + static_cast<int64_t>(scratch)));
  const int64_t gram_at = kernels::DoraProductBytes(products.out, products.rank).gram_at;
  return [matmuls = &b.matmuls, products, args = DoraNormsArgsOf<T>(b, products),
          down = b.Input<char>(1), to = b.Workspace(), gram_at,
          space = b.Workspace() + before](const StepContext&) -> absl::Status {
    MP_RETURN_IF_ERROR(
        matmuls->Execute(products.with_weight, args.weight, down, nullptr, to, space));
    MP_RETURN_IF_ERROR(
        matmuls->Execute(products.with_itself, down, down, nullptr, to + gram_at, space));
    kernels::DoraNorms<T>(args);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> DoraOf(const Binding& b) {
  const kernels::DoraForwardArgs<T> args = DoraForwardArgsOf<T>(b);
  MP_RETURN_IF_ERROR(b.RequireWorkspace(kernels::DoraForwardWorkspaceBytes(args.width)));
  return [args, workspace = b.Workspace()](const StepContext&) {
    kernels::DoraForward<T>(args, workspace);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> DoraBackwardOf(const Binding& b) {
  const DoraBackwardBinding<T> binding(b);
  MP_RETURN_IF_ERROR(b.RequireWorkspace(
      kernels::DoraBackwardWorkspaceBytes(binding.args.rows, binding.args.width)));
  return [binding, workspace = b.Workspace()](const StepContext& context) {
    kernels::DoraBackward<T>(binding.At(context), workspace);
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kDoraNorms = {.bind = MP_BY_DTYPE(DoraNormsOf), .products = DoraMatmulSpecs};
constinit const CpuOp kDora = {.bind = MP_BY_DTYPE(DoraOf)};
constinit const CpuOp kDoraBackward = {.bind = MP_BY_DTYPE(DoraBackwardOf)};

}  // namespace milepost::ops::cpu
