// What an op of the reference is given, and the table of what each kind does. Internal to the
// reference and to the rooms.
#ifndef MILEPOST_ENGINE_OPS_REFERENCE_REFERENCE_RUN_H_
#define MILEPOST_ENGINE_OPS_REFERENCE_REFERENCE_RUN_H_

#include <cstdint>
#include <vector>

#include "common/check.h"
#include "engine/graph/graph.h"
#include "engine/ops/reference/reference_interpreter.h"

namespace milepost::ops::reference {

using Array = std::vector<double>;

// One op being executed: its operands by position.
struct Run {
  const graph::Graph& graph;
  const graph::Op& op;
  const graph::ReferenceContext& context;
  std::vector<std::vector<double>>& values;
  std::vector<std::vector<int32_t>>& all_integers;

  bool has_input(size_t i) const { return op.inputs[i] != graph::kNoValue; }
  const Array& in(size_t i) const { return values[op.inputs[i]]; }
  const std::vector<int32_t>& integers(size_t i) const { return all_integers[op.inputs[i]]; }
  int64_t dim(size_t input, size_t axis) const {
    return graph.values[op.inputs[input]].shape[axis];
  }
  const graph::Shape& in_shape(size_t i) const { return graph.values[op.inputs[i]].shape; }
  const graph::Shape& out_shape(size_t i) const { return graph.values[op.outputs[i].value].shape; }
  double Dropout(int64_t element) const {
    if (op.attributes.dropout == 0) return 1;
    MP_CHECK(context.dropout) << "an op has dropout, the context no mask";
    return context.dropout(op.attributes.dropout_tag, op.attributes.dropout, element);
  }
  // Of a loss op: the factor on its gradient.
  double LossGradientScale() const {
    return context.gradient_scale * graph.losses[op.attributes.head].weight;
  }
  // Stores a result by the output's write mode.
  void Write(size_t i, const Array& result) const {
    if (i >= op.outputs.size() || op.outputs[i].value == graph::kNoValue) return;
    const graph::Output& output = op.outputs[i];
    Array& target = values[output.value];
    MP_CHECK(target.size() == result.size()) << Name(op.kind) << " output " << i;
    const bool assign =
        output.mode == graph::WriteMode::kAssign ||
        (output.mode == graph::WriteMode::kAccumulateInStep && context.first_micro_step);
    for (size_t k = 0; k < result.size(); ++k) {
      target[k] = assign ? result[k] : target[k] + result[k];
    }
  }
};

// out[m,n] = sum_k a(i,k) b(k,j), with strides.
Array MatMul(const Array& a, bool transpose_a, const Array& b, bool transpose_b, int64_t m,
             int64_t n, int64_t k);
Array ColumnSums(const Array& a, int64_t columns);

// What one kind of op does; null: the reference has none, as the op works on flat groups or only
// copies between memories.
using Rule = void (*)(const Run& run);
inline constexpr Rule kNotOnValues = nullptr;

#define MP_OP(kind, name) extern const Rule k##kind;  // engine/ops/<room>/<room>_reference.cc
#include "engine/graph/op_kinds.inc"
#undef MP_OP

}  // namespace milepost::ops::reference

#endif  // MILEPOST_ENGINE_OPS_REFERENCE_REFERENCE_RUN_H_
