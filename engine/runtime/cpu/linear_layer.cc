#include "engine/runtime/cpu/linear_layer.h"

#include "engine/runtime/executor/op_binding.h"

namespace milepost::runtime {

using graph::OpKind;
using graph::ValueId;
using kernels::MatmulSpec;

namespace {

// Whether `id` lies right behind `before`.
bool Follows(const plan::Program& program, ValueId before, ValueId id) {
  const graph::Value& value = program.graph.values[before];
  const plan::Place& a = program.places[before];
  const plan::Place& b = program.places[id];
  return a.buffer == b.buffer &&
         a.offset + graph::Elements(value.shape) * ByteSize(value.dtype) == b.offset;
}

}  // namespace

LinearLayer::LinearLayer(const plan::Program& program, const graph::Op& op, bool with_biases)
    : transposed(op.attributes.transposed),
      apart(op.attributes.rows_apart),
      gelu(op.attributes.gelu) {
  const graph::Graph& graph = program.graph;
  const auto shape = [&](ValueId id) -> const graph::Shape& { return graph.values[id].shape; };
  const size_t parts = static_cast<size_t>(op.attributes.parts);
  const bool forward = op.kind == OpKind::kLinear;
  const graph::Shape& narrow = shape(op.inputs[0]);
  rows = narrow[0];
  const DType dtype = graph.values[op.inputs[0]].dtype;
  element = ByteSize(dtype);
  type = dtype;
  if (op.kind == OpKind::kLinearBackwardWeight) {  // x, dy -> the weights', the biases' gradients
    in = narrow[1];
    out = shape(op.inputs[1])[1];
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      (i < parts ? weights : biases).push_back(op.outputs[i].value);
    }
  } else {  // x or dy, the weights; forward: the biases; backward: what dx adds to
    const int64_t other = shape(op.outputs.back().value)[1];
    in = forward ? narrow[1] : other;
    out = forward ? other : narrow[1];
    weights.assign(op.inputs.begin() + 1, op.inputs.begin() + 1 + parts);
    if (forward) biases.assign(op.inputs.begin() + 1 + parts, op.inputs.end());
    adds = !forward && !gelu && op.inputs.size() > 1 + parts;
    keeps_sums = gelu && op.outputs[0].value != graph::kNoValue;
  }
  FindRuns(program, with_biases);
}

void LinearLayer::FindRuns(const plan::Program& program, bool with_biases) {
  int64_t column = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const int64_t columns = transposed ? program.graph.values[weights[i]].shape[0] : out;
    const bool joins =
        i > 0 && Follows(program, weights[i - 1], weights[i]) &&
        (!with_biases || biases.empty() || Follows(program, biases[i - 1], biases[i]));
    if (joins) {
      runs.back().columns += columns;
    } else {
      runs.push_back({i, column, columns});
    }
    column += columns;
  }
}

MatmulSpec LinearLayer::Forward(const Run& run) const {
  return {.m = rows,
          .n = run.columns,
          .k = in,
          .transpose_b = transposed,
          .a = type,
          .b = type,
          .c = type,
          .bias = !biases.empty(),
          .bias_type = type,
          .c_row = Wide(run),
          .rows_alone = apart};
}

MatmulSpec LinearLayer::InputGradient(const Run& run) const {
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

MatmulSpec LinearLayer::WeightGradient(const Run& run, bool accumulate) const {
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

absl::Status CheckOneMode(const graph::Op& op) {
  for (const graph::Output& output : op.outputs) {
    if (output.mode == op.outputs[0].mode) continue;
    return absl::InternalError("a layer's gradients are not all written in one mode");
  }
  return absl::OkStatus();
}

}  // namespace milepost::runtime
