#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "engine/ops/lora/lora_binding.h"
#include "engine/runtime/cpu/cpu_op.h"
#include "engine/runtime/cpu/linear_layer.h"

namespace milepost::ops::cpu {
namespace {

using kernels::MatmulSpec;
using runtime::Binding;
using runtime::BoundOp;
using runtime::StepContext;

std::vector<MatmulSpec> LoraMatmulSpecs(const plan::StepPlan&, const plan::Program& program,
                                        const graph::Op& op) {
  return LoraProducts(LoraLayer(program.graph, op), op.kind);
}

// So that none is created during a step.
absl::Status PrepareLora(const Binding& b) {
  int64_t scratch = 0;
  for (const MatmulSpec& spec : LoraMatmulSpecs(b.plan, b.program, b.planned.op)) {
    MP_ASSIGN_OR_RETURN(const size_t bytes, b.matmuls.WorkspaceBytes(spec));
    scratch = std::max(scratch, static_cast<int64_t>(bytes));
  }
  return b.RequireWorkspace(scratch);
}

struct AdapterProduct {
  MatmulSpec spec;
  MatmulSpec accumulating;  // weight gradients only
  const char* a;
  const char* b;
  char* c;
};

absl::Status RunAll(kernels::MatmulCache* matmuls, const std::vector<AdapterProduct>& products,
                    bool accumulate, const StepContext& context, char* workspace) {
  for (const AdapterProduct& p : products) {
    const MatmulSpec spec = runtime::OfRowsThatCount(accumulate ? p.accumulating : p.spec, context);
    MP_RETURN_IF_ERROR(matmuls->Execute(spec, p.a, p.b, nullptr, p.c, workspace));
  }
  return absl::OkStatus();
}

absl::StatusOr<BoundOp> BindLora(const Binding& b) {
  const LoraLayer layer(b.program.graph, b.planned.op);
  MP_RETURN_IF_ERROR(PrepareLora(b));
  const char* base = b.Input<char>(0);
  char* y = b.Output<char>(0);
  std::vector<AdapterProduct> products;
  for (const LoraLayer::Adapter& adapter : layer.adapters) {
    products.push_back({.spec = layer.Forward(adapter),
                        .a = b.Input<char>(1) + layer.ColumnBytes(adapter.h_column),
                        .b = b.ValueAt(adapter.weight),
                        .c = y + layer.ColumnBytes(adapter.y_column)});
  }
  return [matmuls = &b.matmuls, products = std::move(products), base, y,
          bytes = static_cast<size_t>(layer.rows * layer.ColumnBytes(layer.width)),
          workspace = b.Workspace()](const StepContext& context) {
    if (y != base) std::memcpy(y, base, bytes);
    return RunAll(matmuls, products, false, context, workspace);
  };
}

absl::StatusOr<BoundOp> BindLoraBackwardInput(const Binding& b) {
  const LoraLayer layer(b.program.graph, b.planned.op);
  MP_RETURN_IF_ERROR(PrepareLora(b));
  std::vector<AdapterProduct> products;
  for (const LoraLayer::Adapter& adapter : layer.adapters) {
    products.push_back({.spec = layer.InputGradient(adapter),
                        .a = b.Input<char>(0) + layer.ColumnBytes(adapter.y_column),
                        .b = b.ValueAt(adapter.weight),
                        .c = b.Output<char>(0) + layer.ColumnBytes(adapter.h_column)});
  }
  return [matmuls = &b.matmuls, products = std::move(products),
          workspace = b.Workspace()](const StepContext& context) {
    return RunAll(matmuls, products, false, context, workspace);
  };
}

absl::StatusOr<BoundOp> BindLoraBackwardWeight(const Binding& b) {
  MP_RETURN_IF_ERROR(runtime::CheckOneMode(b.planned.op));
  const LoraLayer layer(b.program.graph, b.planned.op);
  MP_RETURN_IF_ERROR(PrepareLora(b));
  std::vector<AdapterProduct> products;
  for (const LoraLayer::Adapter& adapter : layer.adapters) {
    products.push_back({.spec = layer.WeightGradient(adapter, false),
                        .accumulating = layer.WeightGradient(adapter, true),
                        .a = b.Input<char>(1) + layer.ColumnBytes(adapter.y_column),
                        .b = b.Input<char>(0) + layer.ColumnBytes(adapter.h_column),
                        .c = b.ValueAt(adapter.weight)});
  }
  return [matmuls = &b.matmuls, products = std::move(products), workspace = b.Workspace(),
          accumulation = b.OutputAccumulation(0)](const StepContext& context) {
    return RunAll(matmuls, products, accumulation.At(context), context, workspace);
  };
}

}  // namespace

constinit const CpuOp kLora = {.bind = BindLora, .products = LoraMatmulSpecs};
constinit const CpuOp kLoraBackwardInput = {.bind = BindLoraBackwardInput,
                                            .products = LoraMatmulSpecs};
constinit const CpuOp kLoraBackwardWeight = {.bind = BindLoraBackwardWeight,
                                             .products = LoraMatmulSpecs};

}  // namespace milepost::ops::cpu
