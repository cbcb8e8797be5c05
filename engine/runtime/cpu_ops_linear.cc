// Linear layers on the CPU. Several weights [Mi,K] whose results lie side by side are one product
// where they follow each other in memory; otherwise one each, on columns of the output.
//
// An op's workspace holds its fixed part (packed biases, or the bias gradients' sums) and behind it
// the products' own scratch.
#include "engine/runtime/cpu_ops.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/matmul.h"

namespace milepost::runtime {
namespace {

using graph::OpKind;
using graph::ValueId;
using kernels::MatmulSpec;

constexpr int64_t kAlignment = 64;
int64_t Align(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Weights that make one product: their first, and their columns of the output.
struct Run {
  size_t first;
  size_t count;
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
    int64_t column = 0;
    plan::Place end;  // of the weight before
    for (size_t i = 0; i < weights.size(); ++i) {
      const graph::Value& weight = program.graph.values[weights[i]];
      const plan::Place& place = program.places[weights[i]];
      const int64_t columns = transposed ? weight.shape[0] : out;
      const bool follows = i > 0 && place.buffer == end.buffer && place.offset == end.offset;
      end = {place.buffer,
             place.offset + graph::Elements(weight.shape) * graph::ByteSize(weight.dtype)};
      if (follows) {
        ++runs.back().count;
        runs.back().columns += columns;
      } else {
        runs.push_back({i, 1, column, columns});
      }
      column += columns;
    }
  }

  int64_t Wide(const Run& run) const { return run.columns == out ? 0 : out; }
  MatmulSpec Forward(const Run& run) const {
    return {.m = rows,
            .n = run.columns,
            .k = in,
            .transpose_b = transposed,
            .a = type,
            .b = type,
            .c = type,
            .bias = !biases.empty(),
            .bias_type = type,
            .c_row = Wide(run)};
  }
  MatmulSpec InputGradient(const Run& run) const {
    return {.m = rows,
            .n = in,
            .k = run.columns,
            .transpose_b = !transposed,
            .a = type,
            .b = type,
            .c = type,
            .accumulate = run.first > 0 || adds,
            .a_row = Wide(run)};
  }
  MatmulSpec WeightGradient(const Run& run, bool accumulate) const {
    MatmulSpec spec{.m = in,
                    .n = out,
                    .k = rows,
                    .transpose_a = true,
                    .a = type,
                    .b = type,
                    .accumulate = accumulate};
    if (!transposed) return spec;  // x, dy
    spec.m = run.columns;          // dy, x
    spec.n = in;
    spec.a_row = Wide(run);
    return spec;
  }

  // Biases that do not lie side by side are gathered, and their gradients dealt out, through here.
  int64_t PackedBiasBytes(int64_t size) const { return biases.size() > 1 ? Align(out * size) : 0; }
  int64_t BiasSumBytes() const {
    if (biases.empty()) return 0;
    return Align(static_cast<int64_t>(kernels::BiasGradientWorkspaceBytes(rows, out)));
  }

  bool transposed;
  bool adds = false;  // dx adds to what its last input holds
  int64_t rows, in, out, element;
  kernels::DType type;
  std::vector<ValueId> weights, biases;  // kLinearBackwardWeight: their gradients
  std::vector<Run> runs;
};

// Asks for the primitives, so that none is created during a step.
absl::Status Prepare(const Binding& b) {
  int64_t scratch = 0;
  for (const MatmulSpec& spec : LinearMatmulSpecs(b.program, b.planned.op)) {
    MP_ASSIGN_OR_RETURN(const size_t bytes, b.matmuls.WorkspaceBytes(spec));
    scratch = std::max(scratch, static_cast<int64_t>(bytes));
  }
  return b.RequireWorkspace(LinearFixedBytes(b.program, b.planned.op) + scratch);
}

struct Product {
  MatmulSpec spec;
  MatmulSpec accumulating;  // weight gradients only
  const char* a;
  const char* b;
  const char* bias;
  char* c;
};

struct Bytes {
  char* data;
  int64_t count;
};

// Where the biases, or their gradients, lie.
std::vector<Bytes> BiasesOf(const Binding& b, const Layer& layer) {
  std::vector<Bytes> biases;
  for (ValueId id : layer.biases) {
    const graph::Value& value = b.ValueOf(id);
    biases.push_back({b.ValueAt(id), graph::Elements(value.shape) * graph::ByteSize(value.dtype)});
  }
  return biases;
}

}  // namespace

std::vector<MatmulSpec> LinearMatmulSpecs(const plan::Program& program, const graph::Op& op) {
  const Layer layer(program, op);
  std::vector<MatmulSpec> specs;
  for (const Run& run : layer.runs) {
    if (op.kind == OpKind::kLinear) {
      specs.push_back(layer.Forward(run));
    } else if (op.kind == OpKind::kLinearBackwardInput) {
      specs.push_back(layer.InputGradient(run));
    } else {
      specs.push_back(layer.WeightGradient(run, false));
      specs.push_back(layer.WeightGradient(run, true));
    }
  }
  return specs;
}

int64_t LinearFixedBytes(const plan::Program& program, const graph::Op& op) {
  const Layer layer(program, op);
  if (op.kind == OpKind::kLinear) return layer.PackedBiasBytes(layer.element);
  if (op.kind == OpKind::kLinearBackwardInput) return 0;
  return layer.BiasSumBytes() + layer.PackedBiasBytes(sizeof(float));
}

absl::StatusOr<BoundOp> BindLinear(const Binding& b) {
  const Layer layer(b.program, b.planned.op);
  MP_RETURN_IF_ERROR(Prepare(b));
  const std::vector<Bytes> biases = BiasesOf(b, layer);
  char* packed = biases.size() > 1 ? b.Workspace() : nullptr;
  const char* bias = packed != nullptr ? packed : biases.empty() ? nullptr : biases[0].data;
  std::vector<Product> products;
  for (const Run& run : layer.runs) {
    const int64_t at = run.column * layer.element;
    products.push_back({.spec = layer.Forward(run),
                        .a = b.Input<char>(0),
                        .b = b.ValueAt(layer.weights[run.first]),
                        .bias = bias == nullptr ? nullptr : bias + at,
                        .c = b.Output<char>(0) + at});
  }
  char* scratch = b.Workspace() + LinearFixedBytes(b.program, b.planned.op);
  return [matmuls = &b.matmuls, products = std::move(products), biases, packed,
          scratch](const StepContext&) -> absl::Status {
    char* to = packed;
    for (size_t i = 0; packed != nullptr && i < biases.size(); ++i) {
      std::memcpy(to, biases[i].data, static_cast<size_t>(biases[i].count));
      to += biases[i].count;
    }
    for (const Product& p : products) {
      MP_RETURN_IF_ERROR(matmuls->Execute(p.spec, p.a, p.b, p.bias, p.c, scratch));
    }
    return absl::OkStatus();
  };
}

absl::StatusOr<BoundOp> BindLinearBackwardInput(const Binding& b) {
  const Layer layer(b.program, b.planned.op);
  MP_RETURN_IF_ERROR(Prepare(b));
  std::vector<Product> products;
  for (const Run& run : layer.runs) {
    products.push_back({.spec = layer.InputGradient(run),
                        .a = b.Input<char>(0) + run.column * layer.element,
                        .b = b.ValueAt(layer.weights[run.first]),
                        .c = b.Output<char>(0)});
  }
  char* dx = b.Output<char>(0);
  const char* dsum = layer.adds ? b.Input<char>(1 + b.attributes().parts) : nullptr;
  return [matmuls = &b.matmuls, products = std::move(products), dx, dsum,
          bytes = layer.rows * layer.in * layer.element,
          scratch = b.Workspace()](const StepContext&) -> absl::Status {
    if (dsum != nullptr && dsum != dx) std::memcpy(dx, dsum, bytes);
    for (const Product& p : products) {
      MP_RETURN_IF_ERROR(matmuls->Execute(p.spec, p.a, p.b, nullptr, p.c, scratch));
    }
    return absl::OkStatus();
  };
}

namespace {

// dbias (+)= the columns' sums of dy.
template <typename T>
struct BiasGradients {
  void Run(bool accumulate) const {
    if (biases.empty()) return;
    if (biases.size() == 1) {
      auto* out = reinterpret_cast<float*>(biases[0].data);
      return kernels::BiasGradient<T>(dy, rows, width, accumulate, out, workspace);
    }
    kernels::BiasGradient<T>(dy, rows, width, false, sums, workspace);
    const float* from = sums;
    for (const Bytes& bias : biases) {
      auto* out = reinterpret_cast<float*>(bias.data);
      const int64_t n = bias.count / static_cast<int64_t>(sizeof(float));
      accumulate ? kernels::Accumulate(from, n, out) : static_cast<void>(std::copy_n(from, n, out));
      from += n;
    }
  }

  const T* dy;
  int64_t rows;
  int64_t width;
  std::vector<Bytes> biases;
  void* workspace;
  float* sums;  // several biases only
};

template <typename T>
absl::StatusOr<BoundOp> LinearBackwardWeightOf(const Binding& b) {
  const Layer layer(b.program, b.planned.op);
  MP_RETURN_IF_ERROR(Prepare(b));
  const char* x = b.Input<char>(0);
  const char* dy = b.Input<char>(1);
  std::vector<Product> products;
  for (const Run& run : layer.runs) {
    const char* columns = dy + run.column * layer.element;
    products.push_back({.spec = layer.WeightGradient(run, false),
                        .accumulating = layer.WeightGradient(run, true),
                        .a = layer.transposed ? columns : x,
                        .b = layer.transposed ? x : columns,
                        .c = b.ValueAt(layer.weights[run.first])});
  }
  for (size_t i = 1; i < b.planned.op.outputs.size(); ++i) {
    if (b.planned.op.outputs[i].mode == b.planned.op.outputs[0].mode) continue;
    return absl::InternalError("a layer's gradients are not all written in one mode");
  }
  BiasGradients<T> biases{.dy = b.Input<T>(1),
                          .rows = layer.rows,
                          .width = layer.out,
                          .biases = BiasesOf(b, layer),
                          .workspace = b.Workspace(),
                          .sums = reinterpret_cast<float*>(b.Workspace() + layer.BiasSumBytes())};
  char* scratch = b.Workspace() + LinearFixedBytes(b.program, b.planned.op);
  return [matmuls = &b.matmuls, products = std::move(products), biases = std::move(biases), scratch,
          accumulation = b.OutputAccumulation(0)](const StepContext& context) -> absl::Status {
    const bool add = accumulation.At(context);
    biases.Run(add);
    for (const Product& p : products) {
      MP_RETURN_IF_ERROR(
          matmuls->Execute(add ? p.accumulating : p.spec, p.a, p.b, nullptr, p.c, scratch));
    }
    return absl::OkStatus();
  };
}

}  // namespace

absl::StatusOr<BoundOp> BindLinearBackwardWeight(const Binding& b) {
  return MP_BIND_BY_DTYPE(LinearBackwardWeightOf, b);
}

}  // namespace milepost::runtime
