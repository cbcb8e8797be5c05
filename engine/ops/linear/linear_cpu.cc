// An op's workspace holds its fixed part (packed biases, or the bias gradients' sums) and behind it
// the products' own scratch.
#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/matmul.h"
#include "engine/ops/linear/linear_fp8_cpu.h"
#include "engine/runtime/cpu/cpu_bias_gradients.h"
#include "engine/runtime/cpu/cpu_op.h"
#include "engine/runtime/cpu/linear_layer.h"

namespace milepost::ops::cpu {
namespace {

using kernels::MatmulSpec;
using runtime::BiasBytes;
using runtime::BiasesOf;
using runtime::BiasGradients;
using runtime::Binding;
using runtime::BoundOp;
using runtime::LinearLayer;
using runtime::StepContext;

// Biases that do not lie side by side are gathered, and their gradients dealt out, in packed form.
struct Layer : LinearLayer {
  Layer(const plan::Program& program, const graph::Op& op)
      : LinearLayer(program, op, /*with_biases=*/false) {}
  int64_t BiasSumBytes() const {
    if (biases.empty()) return 0;
    return LineAligned(kernels::BiasGradientWorkspaceBytes(rows, out));
  }
};

std::vector<MatmulSpec> LinearMatmulSpecs(const plan::StepPlan&, const plan::Program& program,
                                          const graph::Op& op) {
  if (op.attributes.fp8) return Fp8MatmulSpecs(program, op);
  return runtime::LayerProducts(Layer(program, op), op.kind);
}

// Asks for the primitives, so that none is created during a step.
absl::Status Prepare(const Binding& b) {
  int64_t scratch = 0;
  for (const MatmulSpec& spec : LinearMatmulSpecs(b.plan, b.program, b.planned.op)) {
    MP_ASSIGN_OR_RETURN(const size_t bytes, b.matmuls.WorkspaceBytes(spec));
    scratch = std::max(scratch, static_cast<int64_t>(bytes));
  }
  return b.RequireWorkspace(b.BytesBeforeScratch() + scratch);
}

struct LayerProduct {
  MatmulSpec spec;
  MatmulSpec accumulating;  // weight gradients only
  const char* a;
  const char* b;
  const char* bias;
  char* c;
};

// What follows the products of a layer with a GELU, which is computed from the rounded sums here.
using Gelu = std::function<void()>;

template <typename T>
Gelu LayerGelu(const Binding& b) {
  const int64_t n = graph::Elements(b.OutputShape(1));
  T* y = b.Output<T>(1);
  const T* sums = b.OutputId(0) != graph::kNoValue ? b.Output<T>(0) : y;
  return [sums, n, y] { kernels::GeluForward<T>(sums, n, y); };
}

template <typename T>
Gelu LayerGeluBackward(const Binding& b) {
  const int64_t n = graph::Elements(b.OutputShape(0));
  T* dx = b.Output<T>(0);
  return [x = b.Input<T>(2), dx, n] { kernels::GeluBackward<T>(x, dx, n, dx); };
}

Gelu NoGelu() {
  return [] {};
}

absl::StatusOr<BoundOp> BindLinear(const Binding& b) {
  if (b.attributes().fp8) return BindFp8Linear(b);
  const Layer layer(b.program, b.planned.op);
  MP_RETURN_IF_ERROR(Prepare(b));
  const std::vector<BiasBytes> biases = BiasesOf(b, layer.biases);
  char* packed = biases.size() > 1 ? b.Workspace() : nullptr;
  const char* bias = packed != nullptr ? packed : biases.empty() ? nullptr : biases[0].data;
  const Gelu gelu = layer.gelu ? MP_BIND_BY_DTYPE(LayerGelu, b) : NoGelu();
  char* y = b.Output<char>(layer.gelu && !layer.keeps_sums ? 1 : 0);
  std::vector<LayerProduct> products;
  for (const LinearLayer::Run& run : layer.runs) {
    const int64_t at = layer.ColumnBytes(run);
    products.push_back({.spec = layer.Forward(run),
                        .a = b.Input<char>(0),
                        .b = b.ValueAt(layer.weights[run.first]),
                        .bias = bias == nullptr ? nullptr : bias + at,
                        .c = y + at});
  }
  char* scratch = b.Workspace() + b.BytesBeforeScratch();
  return [matmuls = &b.matmuls, products = std::move(products), biases, packed, scratch,
          gelu](const StepContext& context) -> absl::Status {
    char* to = packed;
    for (size_t i = 0; packed != nullptr && i < biases.size(); ++i) {
      std::memcpy(to, biases[i].data, static_cast<size_t>(biases[i].count));
      to += biases[i].count;
    }
    for (const LayerProduct& p : products) {
      const MatmulSpec spec = runtime::OfRowsThatCount(p.spec, context);
      MP_RETURN_IF_ERROR(matmuls->Execute(spec, p.a, p.b, p.bias, p.c, scratch));
    }
    gelu();
    return absl::OkStatus();
  };
}

absl::StatusOr<BoundOp> BindLinearBackwardInput(const Binding& b) {
  if (b.attributes().fp8) return BindFp8BackwardInput(b);
  const Layer layer(b.program, b.planned.op);
  MP_RETURN_IF_ERROR(Prepare(b));
  std::vector<LayerProduct> products;
  for (const LinearLayer::Run& run : layer.runs) {
    products.push_back({.spec = layer.InputGradient(run),
                        .a = b.Input<char>(0) + layer.ColumnBytes(run),
                        .b = b.ValueAt(layer.weights[run.first]),
                        .c = b.Output<char>(0)});
  }
  char* dx = b.Output<char>(0);
  const char* dsum = layer.adds ? b.Input<char>(1 + b.attributes().parts) : nullptr;
  const Gelu gelu = layer.gelu ? MP_BIND_BY_DTYPE(LayerGeluBackward, b) : NoGelu();
  return [matmuls = &b.matmuls, products = std::move(products), dx, dsum, gelu,
          bytes = layer.rows * layer.in * layer.element,
          scratch = b.Workspace()](const StepContext&) -> absl::Status {
    if (dsum != nullptr && dsum != dx) std::memcpy(dx, dsum, bytes);
    for (const LayerProduct& p : products) {
      MP_RETURN_IF_ERROR(matmuls->Execute(p.spec, p.a, p.b, nullptr, p.c, scratch));
    }
    gelu();
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> LinearBackwardWeightOf(const Binding& b) {
  MP_RETURN_IF_ERROR(runtime::CheckOneMode(b.planned.op));
  const Layer layer(b.program, b.planned.op);
  MP_RETURN_IF_ERROR(Prepare(b));
  const char* x = b.Input<char>(0);
  const char* dy = b.Input<char>(1);
  std::vector<LayerProduct> products;
  for (const LinearLayer::Run& run : layer.runs) {
    const char* columns = dy + layer.ColumnBytes(run);
    products.push_back({.spec = layer.WeightGradient(run, false),
                        .accumulating = layer.WeightGradient(run, true),
                        .a = layer.transposed ? columns : x,
                        .b = layer.transposed ? x : columns,
                        .c = b.ValueAt(layer.weights[run.first])});
  }
  BiasGradients<T> biases{.dy = b.Input<T>(1),
                          .rows = layer.rows,
                          .width = layer.out,
                          .biases = BiasesOf(b, layer.biases),
                          .workspace = b.Workspace(),
                          .sums = reinterpret_cast<float*>(b.Workspace() + layer.BiasSumBytes())};
  char* scratch = b.Workspace() + b.BytesBeforeScratch();
  return [matmuls = &b.matmuls, products = std::move(products), biases = std::move(biases), scratch,
          accumulation = b.OutputAccumulation(0)](const StepContext& context) -> absl::Status {
    const bool add = accumulation.At(context);
    biases.Run(add);
    for (const LayerProduct& p : products) {
      MP_RETURN_IF_ERROR(
          matmuls->Execute(add ? p.accumulating : p.spec, p.a, p.b, nullptr, p.c, scratch));
    }
    return absl::OkStatus();
  };
}

absl::StatusOr<BoundOp> BindLinearBackwardWeight(const Binding& b) {
  if (b.attributes().fp8) return BindFp8BackwardWeight(b);
  return MP_BIND_BY_DTYPE(LinearBackwardWeightOf, b);
}

}  // namespace

constinit const CpuOp kLinear = {.bind = BindLinear, .products = LinearMatmulSpecs};
constinit const CpuOp kLinearBackwardInput = {.bind = BindLinearBackwardInput,
                                              .products = LinearMatmulSpecs};
constinit const CpuOp kLinearBackwardWeight = {.bind = BindLinearBackwardWeight,
                                               .products = LinearMatmulSpecs};

}  // namespace milepost::ops::cpu
