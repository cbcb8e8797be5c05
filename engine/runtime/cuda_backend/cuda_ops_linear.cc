// Linear layers on the GPU. Several weights [Mi,K] whose results lie side by side are one product
// where they, and their biases, follow each other in memory; otherwise one each, on columns of the
// output.
//
// An op's workspace holds the bias gradients' sums and behind them the products' scratch.
#include "engine/runtime/cuda_backend/cuda_ops.h"

#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "engine/kernels/cuda/qk_norm.h"

namespace milepost::runtime {
namespace {

using graph::OpKind;
using graph::ValueId;
using kernels::MatmulSpec;
using kernels::cuda::DeviceProducts;
using kernels::cuda::Product;
using kernels::cuda::ProductArguments;
namespace cuda = kernels::cuda;

// Weights that make one product: their first, and their columns of the output.
struct Run {
  size_t first;
  int64_t column;
  int64_t columns;
};

struct Layer {
  Layer(const plan::Program& program, const graph::Op& op) : transposed(op.attributes.transposed) {
    const graph::Graph& graph = program.graph;
    const auto shape = [&](ValueId id) -> const graph::Shape& { return graph.values[id].shape; };
    const size_t parts = static_cast<size_t>(op.attributes.parts);
    const bool forward = op.kind == OpKind::kLinear;
    const graph::Shape& narrow = shape(op.inputs[0]);
    rows = narrow[0];
    const graph::DType dtype = graph.values[op.inputs[0]].dtype;
    element = graph::ByteSize(dtype);
    type = KernelDType(dtype);
    if (op.kind == OpKind::kLinearBackwardWeight) {  // x, dy -> the weights', the biases' gradients
      in = narrow[1];
      out = shape(op.inputs[1])[1];
      for (size_t i = 0; i < op.outputs.size(); ++i) {
        (i < parts ? weights : biases).push_back(op.outputs[i].value);
      }
    } else {  // x or dy, the weights; forward: the biases; backward: what dx adds to
      const int64_t other = shape(op.outputs[0].value)[1];
      in = forward ? narrow[1] : other;
      out = forward ? other : narrow[1];
      weights.assign(op.inputs.begin() + 1, op.inputs.begin() + 1 + parts);
      if (forward) biases.assign(op.inputs.begin() + 1 + parts, op.inputs.end());
      adds = !forward && op.inputs.size() > 1 + parts;
    }
    FindRuns(program);
  }

  void FindRuns(const plan::Program& program) {
    const auto follows = [&](ValueId before, ValueId id) {
      const graph::Value& value = program.graph.values[before];
      const plan::Place& a = program.places[before];
      const plan::Place& b = program.places[id];
      return a.buffer == b.buffer &&
             a.offset + graph::Elements(value.shape) * graph::ByteSize(value.dtype) == b.offset;
    };
    int64_t column = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      const int64_t columns = transposed ? program.graph.values[weights[i]].shape[0] : out;
      const bool joins = i > 0 && follows(weights[i - 1], weights[i]) &&
                         (biases.empty() || follows(biases[i - 1], biases[i]));
      if (joins) {
        runs.back().columns += columns;
      } else {
        runs.push_back({i, column, columns});
      }
      column += columns;
    }
  }

  int64_t Wide(const Run& run) const { return run.columns == out ? 0 : out; }
  Product Of(const Run& run, const MatmulSpec& spec) const {
    const bool aligned = run.column * element % 16 == 0;
    return {.spec = spec, .alignment = aligned ? 16 : static_cast<int>(element)};
  }
  Product Forward(const Run& run) const {
    return Of(run, {.m = rows,
                    .n = run.columns,
                    .k = in,
                    .transpose_b = transposed,
                    .a = type,
                    .b = type,
                    .c = type,
                    .bias = !biases.empty(),
                    .bias_type = type,
                    .c_row = Wide(run)});
  }
  Product InputGradient(const Run& run) const {
    return Of(run, {.m = rows,
                    .n = in,
                    .k = run.columns,
                    .transpose_b = !transposed,
                    .a = type,
                    .b = type,
                    .c = type,
                    .accumulate = run.first > 0 || adds,
                    .a_row = Wide(run)});
  }
  Product WeightGradient(const Run& run, bool accumulate) const {
    MatmulSpec spec{.m = in,
                    .n = out,
                    .k = rows,
                    .transpose_a = true,
                    .a = type,
                    .b = type,
                    .accumulate = accumulate};
    if (transposed) {  // dy, x; otherwise x, dy
      spec.m = run.columns;
      spec.n = in;
      spec.a_row = Wide(run);
    }
    return Of(run, spec);
  }

  bool transposed;
  bool adds = false;  // dx adds to what its last input holds
  int64_t rows, in, out, element;
  kernels::DType type;
  std::vector<ValueId> weights, biases;  // kLinearBackwardWeight: their gradients
  std::vector<Run> runs;
};

// A product where it stands.
struct Call {
  absl::Status Execute(DeviceProducts* products, void* workspace, cudaStream_t stream) const {
    return products->Execute(product, arguments, workspace, stream);
  }
  Product product;
  ProductArguments arguments;
};

}  // namespace

std::vector<Product> LinearProducts(const plan::Program& program, const graph::Op& op) {
  const Layer layer(program, op);
  std::vector<Product> products;
  for (const Run& run : layer.runs) {
    if (op.kind == OpKind::kLinear) {
      products.push_back(layer.Forward(run));
    } else if (op.kind == OpKind::kLinearBackwardInput) {
      products.push_back(layer.InputGradient(run));
    } else {
      products.push_back(layer.WeightGradient(run, false));
      products.push_back(layer.WeightGradient(run, true));
    }
  }
  return products;
}

int64_t LinearBytesBeforeScratch(const plan::Program& program, const graph::Op& op) {
  const Layer layer(program, op);
  if (op.kind != OpKind::kLinearBackwardWeight || layer.biases.empty()) return 0;
  return AlignScratch(cuda::BiasGradientWorkspaceBytes(layer.rows, layer.out));
}

absl::StatusOr<BoundOp> BindLinear(const CudaBinding& b) {
  const Layer layer(b.program, b.planned.op);
  DeviceProducts* products = b.services.products;
  MP_RETURN_IF_ERROR(b.RequireWorkspace(products->WorkspaceBytes()));
  std::vector<Call> calls;
  for (const Run& run : layer.runs) {
    const char* bias = layer.biases.empty() ? nullptr : b.ValueAt(layer.biases[run.first]);
    calls.push_back({layer.Forward(run),
                     {.a = b.Input<char>(0),
                      .b = b.ValueAt(layer.weights[run.first]),
                      .bias = bias,
                      .c = b.Output<char>(0) + run.column * layer.element}});
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
  const Layer layer(b.program, b.planned.op);
  DeviceProducts* products = b.services.products;
  MP_RETURN_IF_ERROR(b.RequireWorkspace(products->WorkspaceBytes()));
  const char* dsum = layer.adds ? b.Input<char>(1 + b.attributes().parts) : nullptr;
  std::vector<Call> calls;
  for (const Run& run : layer.runs) {
    calls.push_back({layer.InputGradient(run),
                     {.a = b.Input<char>(0) + run.column * layer.element,
                      .b = b.ValueAt(layer.weights[run.first]),
                      .c = b.Output<char>(0),
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

namespace {

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
  const Layer layer(b.program, b.planned.op);
  DeviceProducts* products = b.services.products;
  const int64_t before = LinearBytesBeforeScratch(b.program, b.planned.op);
  MP_RETURN_IF_ERROR(b.RequireWorkspace(before + products->WorkspaceBytes()));
  for (size_t i = 1; i < b.planned.op.outputs.size(); ++i) {
    if (b.planned.op.outputs[i].mode == b.planned.op.outputs[0].mode) continue;
    return absl::InternalError("a layer's gradients are not all written in one mode");
  }
  const T* x = b.Input<T>(0);
  std::vector<Gradients<T>> runs;
  for (const Run& run : layer.runs) {
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

}  // namespace

absl::StatusOr<BoundOp> BindLinearBackwardWeight(const CudaBinding& b) {
  return MP_BIND_BY_DTYPE(LinearBackwardWeightOf, b);
}

}  // namespace milepost::runtime
