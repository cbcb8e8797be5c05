// An op's workspace holds the bias gradients' sums and behind them the products' scratch.
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "engine/ops/linear/linear_fp8_cuda.h"
#include "engine/ops/qk_norm/qk_norm_cuda_kernel.h"
#include "engine/runtime/cpu/linear_layer.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using kernels::MatmulSpec;
using kernels::cuda::DeviceProducts;
using kernels::cuda::Epilogue;
using kernels::cuda::Product;
using kernels::cuda::ProductArguments;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::LinearLayer;
using runtime::StepContext;

struct Layer : LinearLayer {
  Layer(const plan::Program& program, const graph::Op& op)
      : LinearLayer(program, op, /*with_biases=*/true) {}
  Product Of(const Run& run, const MatmulSpec& spec) const {
    return {.spec = spec, .alignment = ColumnBytes(run) % 16 == 0 ? 16 : static_cast<int>(element)};
  }
  Product Forward(const Run& run) const {
    Product product = Of(run, LinearLayer::Forward(run));
    if (gelu) product.epilogue = keeps_sums ? Epilogue::kGelu : Epilogue::kGeluAlone;
    return product;
  }
  Product InputGradient(const Run& run) const {
    Product product = Of(run, LinearLayer::InputGradient(run));
    if (gelu) product.epilogue = Epilogue::kGeluBackward;
    return product;
  }
  Product WeightGradient(const Run& run, bool accumulate) const {
    return Of(run, LinearLayer::WeightGradient(run, accumulate));
  }
};

// A product where it stands.
struct Call {
  absl::Status Execute(DeviceProducts* products, void* workspace, cudaStream_t stream) const {
    return products->Execute(product, arguments, workspace, stream);
  }
  Product product;
  ProductArguments arguments;
};

std::vector<Product> LinearProducts(const plan::StepPlan&, const plan::Program& program,
                                    const graph::Op& op) {
  if (op.attributes.fp8) return Fp8LayerProducts(program, op);
  return runtime::LayerProducts(Layer(program, op), op.kind);
}

absl::StatusOr<BoundOp> BindLinear(const CudaBinding& b) {
  if (b.attributes().fp8) return BindFp8Layer(b);
  const Layer layer(b.program, b.planned.op);
  DeviceProducts* products = b.services.products;
  MP_RETURN_IF_ERROR(b.RequireWorkspace(products->WorkspaceBytes()));
  std::vector<Call> calls;
  for (const LinearLayer::Run& run : layer.runs) {
    const char* bias = layer.biases.empty() ? nullptr : b.ValueAt(layer.biases[run.first]);
    calls.push_back({layer.Forward(run),
                     {.a = b.Input<char>(0),
                      .b = b.ValueAt(layer.weights[run.first]),
                      .bias = bias,
                      .c = b.Output<char>(layer.gelu ? 1 : 0) + layer.ColumnBytes(run),
                      .aux = layer.gelu ? b.Output<char>(0) : nullptr}});
  }
  return [products, calls = std::move(calls), workspace = b.Workspace(),
          stream = b.stream()](const StepContext&) -> absl::Status {
    for (const Call& call : calls) {
      MP_RETURN_IF_ERROR(call.Execute(products, workspace, stream));
    }
    return absl::OkStatus();
  };
}

absl::StatusOr<BoundOp> BindLinearBackwardInput(const CudaBinding& b) {
  if (b.attributes().fp8) return BindFp8Layer(b);
  const Layer layer(b.program, b.planned.op);
  DeviceProducts* products = b.services.products;
  MP_RETURN_IF_ERROR(b.RequireWorkspace(products->WorkspaceBytes()));
  const char* dsum = layer.adds ? b.Input<char>(1 + b.attributes().parts) : nullptr;
  // Read alone.
  char* before_gelu = layer.gelu ? b.ValueAt(b.planned.op.inputs[2]) : nullptr;
  std::vector<Call> calls;
  for (const LinearLayer::Run& run : layer.runs) {
    calls.push_back({layer.InputGradient(run),
                     {.a = b.Input<char>(0) + layer.ColumnBytes(run),
                      .b = b.ValueAt(layer.weights[run.first]),
                      .c = b.Output<char>(0),
                      .aux = before_gelu,
                      .addend = run.first == 0 ? dsum : nullptr}});
  }
  return [products, calls = std::move(calls), workspace = b.Workspace(),
          stream = b.stream()](const StepContext&) -> absl::Status {
    for (const Call& call : calls) {
      MP_RETURN_IF_ERROR(call.Execute(products, workspace, stream));
    }
    return absl::OkStatus();
  };
}

// A run's gradients: of its weights, and of its biases, the columns' sums of dy.
template <typename T>
struct Gradients {
  absl::Status Run(bool accumulate, DeviceProducts* products, void* sums, void* workspace,
                   cudaStream_t stream) const {
    if (bias != nullptr) {
      MP_RETURN_IF_ERROR(
          cuda::BiasGradient<T>(dy, rows, columns, row_stride, accumulate, bias, sums, stream));
    }
    return products->Execute(accumulate ? accumulating : assigning, arguments, workspace, stream);
  }

  Product assigning, accumulating;
  ProductArguments arguments;
  float* bias;  // or null
  const T* dy;
  int64_t rows, columns, row_stride;
};

template <typename T>
absl::StatusOr<BoundOp> LinearBackwardWeightOf(const CudaBinding& b) {
  MP_RETURN_IF_ERROR(runtime::CheckOneMode(b.planned.op));
  const Layer layer(b.program, b.planned.op);
  DeviceProducts* products = b.services.products;
  const int64_t before = b.BytesBeforeScratch();
  MP_RETURN_IF_ERROR(b.RequireWorkspace(before + products->WorkspaceBytes()));
  const T* x = b.Input<T>(0);
  std::vector<Gradients<T>> runs;
  for (const LinearLayer::Run& run : layer.runs) {
    const T* dy = b.Input<T>(1) + run.column;
    char* bias = layer.biases.empty() ? nullptr : b.ValueAt(layer.biases[run.first]);
    runs.push_back({.assigning = layer.WeightGradient(run, false),
                    .accumulating = layer.WeightGradient(run, true),
                    .arguments = {.a = layer.transposed ? dy : x,
                                  .b = layer.transposed ? x : dy,
                                  .c = b.ValueAt(layer.weights[run.first])},
                    .bias = reinterpret_cast<float*>(bias),
                    .dy = dy,
                    .rows = layer.rows,
                    .columns = run.columns,
                    .row_stride = layer.out});
  }
  return [products, runs = std::move(runs), sums = b.Workspace(),
          workspace = b.Workspace() + before, accumulation = b.OutputAccumulation(0),
          stream = b.stream()](const StepContext& context) -> absl::Status {
    for (const Gradients<T>& run : runs) {
      MP_RETURN_IF_ERROR(run.Run(accumulation.At(context), products, sums, workspace, stream));
    }
    return absl::OkStatus();
  };
}

absl::StatusOr<BoundOp> BindLinearBackwardWeight(const CudaBinding& b) {
  if (b.attributes().fp8) return BindFp8Layer(b);
  return MP_BIND_BY_DTYPE(LinearBackwardWeightOf, b);
}

}  // namespace

constinit const CudaOp kLinear = {.bind = BindLinear, .products = LinearProducts};
constinit const CudaOp kLinearBackwardInput = {.bind = BindLinearBackwardInput,
                                               .products = LinearProducts};
constinit const CudaOp kLinearBackwardWeight = {.bind = BindLinearBackwardWeight,
                                                .products = LinearProducts};

}  // namespace milepost::ops::gpu
