// Internal to backends: the matrix products of a linear layer's op (kLinear and its backwards).
// Several weights [Mi,K] whose results lie side by side are one product where they follow each
// other in memory; otherwise one each, on columns of the output.
//
//   const LinearLayer layer(program, op, /*with_biases=*/false);
//   for (const LinearLayer::Run& run : layer.runs) ... layer.Forward(run) ...
#ifndef MILEPOST_ENGINE_RUNTIME_CPU_LINEAR_LAYER_H_
#define MILEPOST_ENGINE_RUNTIME_CPU_LINEAR_LAYER_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/kernels/cpu/matmul.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/executor/step_context.h"

namespace milepost::runtime {

struct LinearLayer {
  // Weights that make one product: their first, and their columns of the output.
  struct Run {
    size_t first;
    int64_t column;
    int64_t columns;
  };

  // `with_biases`: weights whose biases (or biases' gradients) do not follow each other are
  // products of their own too.
  LinearLayer(const plan::Program& program, const graph::Op& op, bool with_biases);

  kernels::MatmulSpec Forward(const Run& run) const;
  kernels::MatmulSpec InputGradient(const Run& run) const;
  kernels::MatmulSpec WeightGradient(const Run& run, bool accumulate) const;
  // Bytes from the output's first column to the run's.
  int64_t ColumnBytes(const Run& run) const { return run.column * element; }

  bool transposed;
  bool apart = false;  // kLinear: rows are of a text each
  bool adds = false;   // dx adds to what its last input holds
  bool gelu;
  bool keeps_sums = false;  // kLinear with gelu: what goes into it is wanted
  int64_t rows = 0, in = 0, out = 0;
  int64_t element;  // bytes
  DType type;
  std::vector<graph::ValueId> weights, biases;  // kLinearBackwardWeight: their gradients
  std::vector<Run> runs;

 private:
  void FindRuns(const plan::Program& program, bool with_biases);
  // The width of what the run's columns lie in, where they are not all of it.
  int64_t Wide(const Run& run) const { return run.columns == out ? 0 : out; }
};

// The products of an op of `kind`, as `layer` makes them: one for each run; of weight gradients
// two, which assign and which add. Layer: a LinearLayer, or a backend's own with its names.
template <typename Layer>
auto LayerProducts(const Layer& layer, graph::OpKind kind) {
  std::vector<decltype(layer.Forward(layer.runs[0]))> products;
  for (const LinearLayer::Run& run : layer.runs) {
    if (kind == graph::OpKind::kLinear) {
      products.push_back(layer.Forward(run));
    } else if (kind == graph::OpKind::kLinearBackwardInput) {
      products.push_back(layer.InputGradient(run));
    } else {
      products.push_back(layer.WeightGradient(run, false));
      products.push_back(layer.WeightGradient(run, true));
    }
  }
  return products;
}

// The product of the rows that count in this run, where they are made as if alone.
inline kernels::MatmulSpec OfRowsThatCount(kernels::MatmulSpec spec, const StepContext& context) {
  if (spec.rows_alone) spec.m = std::min(spec.m, context.position + 1);
  return spec;
}

// INTERNAL where one of a layer's gradients is assigned and another added to: its products would
// have to differ.
absl::Status CheckOneMode(const graph::Op& op);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_CPU_LINEAR_LAYER_H_
