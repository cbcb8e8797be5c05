// 8-bit products on the GPU, and what makes codes and scalings.
//
// A weight gradient's workspace holds the bias gradients' sums and behind them the products'
// scratch.
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "engine/kernels/cuda/fp8.h"
#include "engine/kernels/cuda/qk_norm.h"
#include "engine/runtime/cuda_backend/cuda_ops.h"
#include "engine/runtime/cuda_backend/device_call.h"
#include "engine/runtime/fp8_layer.h"
#include "engine/runtime/group_ops.h"

namespace milepost::runtime {
namespace {

using graph::OpKind;
using kernels::bf16;
using kernels::cuda::DeviceProducts;
using kernels::cuda::Product;
using kernels::cuda::ProductArguments;
namespace cuda = kernels::cuda;

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

template <typename Code>
absl::StatusOr<BoundOp> QuantizeAs(const CudaBinding& b) {
  const int record = static_cast<int>(b.attributes().parts);
  return [x = StackedOf(b), record = const_cast<float*>(b.Input<float>(record)),
          codes = b.Output<Code>(0), codes_t = b.Output<Code>(1), slots = b.Output<float>(2),
          calibrates = Calibrates(b), stream = b.stream()](const StepContext& context) {
    const auto quantize = [&] {
      return cuda::Quantize(x, record, context.first_micro_step, codes, codes_t, slots, stream);
    };
    MP_RETURN_IF_ERROR(quantize());
    if (!calibrates || !context.new_scalings) return absl::OkStatus();
    MP_RETURN_IF_ERROR(cuda::CalibrateScaling(slots, record, stream));
    return quantize();
  };
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

int64_t Fp8BytesBeforeScratch(const plan::Program& program, const graph::Op& op) {
  if (op.kind != OpKind::kLinearBackwardWeight || op.inputs.size() <= 4) return 0;
  const graph::Shape& dy = program.graph.values[op.inputs[4]].shape;
  return AlignScratch(cuda::BiasGradientWorkspaceBytes(dy[0], dy[1]));
}

absl::StatusOr<BoundOp> BindFp8Layer(const CudaBinding& b) {
  const graph::Op& op = b.planned.op;
  const int64_t before = Fp8BytesBeforeScratch(b.program, op);
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

absl::StatusOr<BoundOp> BindQuantize(const CudaBinding& b) {
  return QuantizesToE5M2(b) ? QuantizeAs<kernels::e5m2>(b) : QuantizeAs<kernels::e4m3>(b);
}

absl::StatusOr<BoundOp> BindGatherAmaxes(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(const DeviceCall call, DeviceCallOf(b));
  const int64_t tensors = QuantizedTensors(b);
  return [call, tensors, slots = BufferOf<float>(b, b.plan.amaxes),
          own = BufferOf<float>(b, b.plan.gathered_amaxes) + b.rank * tensors](const StepContext&) {
    MP_RETURN_IF_ERROR(cuda::CollectAmaxes(slots, tensors, own, call.stream));
    return call.Enqueue();
  };
}

absl::StatusOr<BoundOp> BindUpdateScalings(const CudaBinding& b) {
  return [amaxes = BufferOf<float>(b, b.plan.gathered_amaxes),
          records = BufferOf<float>(b, b.plan.scalings), tensors = QuantizedTensors(b),
          ranks = b.plan.options.world, control = b.memory.update,
          stream = b.stream()](const StepContext&) {
    return cuda::UpdateScalings(amaxes, ranks, tensors, control, records, stream);
  };
}

}  // namespace milepost::runtime
