// What the interpreter's op families share. Internal to the reference.
#ifndef MILEPOST_ENGINE_GRAPH_REFERENCE_REFERENCE_RUN_H_
#define MILEPOST_ENGINE_GRAPH_REFERENCE_REFERENCE_RUN_H_

#include <cstdint>
#include <vector>

#include "common/check.h"
#include "engine/graph/graph.h"
#include "engine/graph/reference/reference_interpreter.h"

namespace milepost::graph::reference {

using Array = std::vector<double>;

// One op being executed: its operands by position.
struct Run {
  const Graph& graph;
  const Op& op;
  const ReferenceContext& context;
  std::vector<std::vector<double>>& values;
  std::vector<std::vector<int32_t>>& all_integers;

  bool has_input(size_t i) const { return op.inputs[i] != kNoValue; }
  const Array& in(size_t i) const { return values[op.inputs[i]]; }
  const std::vector<int32_t>& integers(size_t i) const { return all_integers[op.inputs[i]]; }
  int64_t dim(size_t input, size_t axis) const {
    return graph.values[op.inputs[input]].shape[axis];
  }
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
    if (i >= op.outputs.size() || op.outputs[i].value == kNoValue) return;
    const Output& output = op.outputs[i];
    Array& target = values[output.value];
    MP_CHECK(target.size() == result.size()) << Name(op.kind) << " output " << i;
    const bool assign = output.mode == WriteMode::kAssign ||
                        (output.mode == WriteMode::kAccumulateInStep && context.first_micro_step);
    for (size_t k = 0; k < result.size(); ++k) {
      target[k] = assign ? result[k] : target[k] + result[k];
    }
  }
};

// out[m,n] = sum_k a(i,k) b(k,j), with strides.
Array MatMul(const Array& a, bool transpose_a, const Array& b, bool transpose_b, int64_t m,
             int64_t n, int64_t k);
Array ColumnSums(const Array& a, int64_t columns);

// A scaling of zeros, which values are at first, rounds nothing.
void Quantize(const Run& run);
void Fp8Linear(const Run& run);
void Fp8LinearBackwardInput(const Run& run);
void Fp8LinearBackwardWeight(const Run& run);

void RmsNorm(const Run& run);  // with and without the residual
void RmsNormBackward(const Run& run);
void SwiGlu(const Run& run);
void SwiGluBackward(const Run& run);
void QkNorm(const Run& run);
void QkNormBackward(const Run& run);
void RopeTable(const Run& run);
void Rope(const Run& run);  // and its backward
void CachedAttention(const Run& run);

void NormalizeImages(const Run& run);
void Convolution(const Run& run);
void ConvolutionBackwardData(const Run& run);
void ConvolutionBackwardWeights(const Run& run);
void BatchNormSums(const Run& run);
void ReduceStatistics(const Run& run);
void BatchNormStatistics(const Run& run);
void BatchNormRunning(const Run& run);
void BatchNorm(const Run& run);
void BatchNormBackwardSums(const Run& run);
void BatchNormBackward(const Run& run);
void MaxPool(const Run& run);
void MaxPoolBackward(const Run& run);
void AveragePool(const Run& run);     // and its backward
void ClassifierLoss(const Run& run);  // with its backward, or without

}  // namespace milepost::graph::reference

#endif  // MILEPOST_ENGINE_GRAPH_REFERENCE_REFERENCE_RUN_H_
