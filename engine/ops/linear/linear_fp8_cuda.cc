// A weight gradient's workspace holds the bias gradients' sums and behind them the products'
// scratch.
#include "engine/ops/linear/linear_fp8_cuda.h"

#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "engine/ops/qk_norm/qk_norm_cuda_kernel.h"
#include "engine/runtime/cpu/fp8_layer.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using graph::OpKind;
using kernels::cuda::DeviceProducts;
using kernels::cuda::Product;
using kernels::cuda::ProductArguments;
using runtime::BiasColumns;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::Fp8BiasColumns;
using runtime::Fp8Product;
using runtime::Fp8Products;
using runtime::OpBinding;
using runtime::StepContext;

struct Fp8Call {
  Product assigning, accumulating;
  ProductArguments arguments;
};

struct BiasGradient {
  float* gradient;
  const bf16* dy;  // its first column
  int64_t columns;
};

// What an op launches.
struct Fp8LayerCalls {
  absl::Status Run(bool accumulate) const {
    for (const BiasGradient& bias : biases) {
      MP_RETURN_IF_ERROR(cuda::BiasGradient<bf16>(bias.dy, rows, bias.columns, width, accumulate,
                                                  bias.gradient, sums, stream));
    }
    for (const Fp8Call& call : calls) {
      MP_RETURN_IF_ERROR(products->Execute(accumulate ? call.accumulating : call.assigning,
                                           call.arguments, scratch, stream));
    }
    return absl::OkStatus();
  }

  DeviceProducts* products;
  std::vector<Fp8Call> calls;
  std::vector<BiasGradient> biases;
  int64_t rows, width;  // of dy, where there are biases
  void* sums;
  void* scratch;
  cudaStream_t stream;
};

Product Accumulating(Product product) {
  product.spec.accumulate = true;
  return product;
}

void AddBiases(const CudaBinding& b, Fp8LayerCalls& layer) {
  for (const BiasColumns& bias : Fp8BiasColumns(b.program, b.planned.op)) {
    layer.rows = b.InputShape(4)[0];
    layer.width = b.InputShape(4)[1];
    layer.biases.push_back({reinterpret_cast<float*>(b.ValueAt(bias.gradient)),
                            b.Input<bf16>(4) + bias.column, bias.columns});
  }
}

}  // namespace

std::vector<Product> Fp8LayerProducts(const plan::Program& program, const graph::Op& op) {
  std::vector<Product> products;
  for (const Fp8Product& product : Fp8Products(program, op)) {
    products.push_back({.spec = product.spec});
    if (op.kind == OpKind::kLinearBackwardWeight) products.push_back(Accumulating(products.back()));
  }
  return products;
}

absl::StatusOr<BoundOp> BindFp8Layer(const CudaBinding& b) {
  const graph::Op& op = b.planned.op;
  const int64_t before = b.BytesBeforeScratch();
  Fp8LayerCalls layer = {.products = b.services.products,
                         .calls = {},
                         .biases = {},
                         .rows = 0,
                         .width = 0,
                         .sums = b.Workspace(),
                         .scratch = b.Workspace() + before,
                         .stream = b.stream()};
  MP_RETURN_IF_ERROR(b.RequireWorkspace(before + layer.products->WorkspaceBytes()));
  const bool gradient = op.kind == OpKind::kLinearBackwardWeight;
  const char* dsum = op.kind == OpKind::kLinearBackwardInput ? b.Input<char>(4) : nullptr;
  for (const Fp8Product& product : Fp8Products(b.program, op)) {
    const Product assigning = {.spec = product.spec};
    layer.calls.push_back({.assigning = assigning,
                           .accumulating = Accumulating(assigning),
                           .arguments = {.a = b.Input<char>(product.a) + product.a_byte,
                                         .b = b.Input<char>(product.b) + product.b_byte,
                                         .bias = b.ValueAt(product.bias),
                                         .c = b.ValueAt(product.c) + product.c_byte,
                                         .addend = dsum,
                                         .a_scale = b.Input<float>(2 + product.a),
                                         .b_scale = b.Input<float>(2 + product.b)}});
  }
  if (gradient) AddBiases(b, layer);
  const OpBinding::Accumulation accumulation =
      gradient ? b.OutputAccumulation(0) : OpBinding::Accumulation{};
  return [layer = std::move(layer), accumulation](const StepContext& context) {
    return layer.Run(accumulation.At(context));
  };
}

}  // namespace milepost::ops::gpu
