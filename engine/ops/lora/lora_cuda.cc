#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "engine/kernels/cuda/elementwise.h"
#include "engine/ops/lora/lora_binding.h"
#include "engine/runtime/cpu/linear_layer.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using kernels::MatmulSpec;
using kernels::cuda::DeviceProducts;
using kernels::cuda::Product;
using kernels::cuda::ProductArguments;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::StepContext;

struct AdapterLayer : LoraLayer {
  using LoraLayer::LoraLayer;
  // Columns may begin anywhere.
  Product Of(const Adapter& adapter, const MatmulSpec& spec) const {
    const bool aligned =
        ColumnBytes(adapter.y_column) % 16 == 0 && ColumnBytes(adapter.h_column) % 16 == 0;
    return {.spec = spec, .alignment = aligned ? 16 : static_cast<int>(ByteSize(type))};
  }
  Product Forward(const Adapter& adapter) const { return Of(adapter, LoraLayer::Forward(adapter)); }
  Product InputGradient(const Adapter& adapter) const {
    return Of(adapter, LoraLayer::InputGradient(adapter));
  }
  Product WeightGradient(const Adapter& adapter, bool accumulate) const {
    return Of(adapter, LoraLayer::WeightGradient(adapter, accumulate));
  }
};

struct AdapterCall {
  Product product;
  Product accumulating;  // weight gradients only
  ProductArguments arguments;
};

// What all three do: their products, one after the other.
struct AdapterCalls {
  absl::Status Run(bool accumulate) const {
    for (const AdapterCall& call : calls) {
      MP_RETURN_IF_ERROR(products->Execute(accumulate ? call.accumulating : call.product,
                                           call.arguments, workspace, stream));
    }
    return absl::OkStatus();
  }

  DeviceProducts* products;
  void* workspace;
  cudaStream_t stream;
  std::vector<AdapterCall> calls = {};
};

std::vector<Product> LoraDeviceProducts(const plan::StepPlan&, const plan::Program& program,
                                        const graph::Op& op) {
  return LoraProducts(AdapterLayer(program.graph, op), op.kind);
}

absl::StatusOr<AdapterCalls> NoCallsYet(const CudaBinding& b) {
  DeviceProducts* products = b.services.products;
  MP_RETURN_IF_ERROR(b.RequireWorkspace(products->WorkspaceBytes()));
  return AdapterCalls{products, b.Workspace(), b.stream()};
}

template <typename T>
absl::StatusOr<BoundOp> LoraOf(const CudaBinding& b) {
  const AdapterLayer layer(b.program.graph, b.planned.op);
  MP_ASSIGN_OR_RETURN(AdapterCalls all, NoCallsYet(b));
  const T* base = b.Input<T>(0);
  T* y = b.Output<T>(0);
  for (const LoraLayer::Adapter& adapter : layer.adapters) {
    all.calls.push_back({.product = layer.Forward(adapter),
                         .arguments = {.a = b.Input<T>(1) + adapter.h_column,
                                       .b = b.ValueAt(adapter.weight),
                                       .c = y + adapter.y_column}});
  }
  return [all = std::move(all), base, y,
          elements = layer.rows * layer.width](const StepContext&) -> absl::Status {
    if (y != base) MP_RETURN_IF_ERROR(cuda::Cast<T>(base, elements, y, all.stream));
    return all.Run(false);
  };
}

template <typename T>
absl::StatusOr<BoundOp> LoraBackwardInputOf(const CudaBinding& b) {
  const AdapterLayer layer(b.program.graph, b.planned.op);
  MP_ASSIGN_OR_RETURN(AdapterCalls all, NoCallsYet(b));
  for (const LoraLayer::Adapter& adapter : layer.adapters) {
    all.calls.push_back({.product = layer.InputGradient(adapter),
                         .arguments = {.a = b.Input<T>(0) + adapter.y_column,
                                       .b = b.ValueAt(adapter.weight),
                                       .c = b.Output<T>(0) + adapter.h_column}});
  }
  return [all = std::move(all)](const StepContext&) { return all.Run(false); };
}

template <typename T>
absl::StatusOr<BoundOp> LoraBackwardWeightOf(const CudaBinding& b) {
  MP_RETURN_IF_ERROR(runtime::CheckOneMode(b.planned.op));
  const AdapterLayer layer(b.program.graph, b.planned.op);
  MP_ASSIGN_OR_RETURN(AdapterCalls all, NoCallsYet(b));
  for (const LoraLayer::Adapter& adapter : layer.adapters) {
    all.calls.push_back({.product = layer.WeightGradient(adapter, false),
                         .accumulating = layer.WeightGradient(adapter, true),
                         .arguments = {.a = b.Input<T>(1) + adapter.y_column,
                                       .b = b.Input<T>(0) + adapter.h_column,
                                       .c = b.ValueAt(adapter.weight)}});
  }
  return [all = std::move(all), accumulation = b.OutputAccumulation(0)](
             const StepContext& context) { return all.Run(accumulation.At(context)); };
}

}  // namespace

constinit const CudaOp kLora = {.bind = MP_BY_DTYPE(LoraOf), .products = LoraDeviceProducts};
constinit const CudaOp kLoraBackwardInput = {.bind = MP_BY_DTYPE(LoraBackwardInputOf),
                                             .products = LoraDeviceProducts};
constinit const CudaOp kLoraBackwardWeight = {.bind = MP_BY_DTYPE(LoraBackwardWeightOf),
                                              .products = LoraDeviceProducts};

}  // namespace milepost::ops::gpu
