// Internal to backends: the matrix products of a linear layer's op whose operands are 8-bit codes,
// and what kQuantize reads.
//
// Both operands have the index that is summed over innermost: C[m,n] = A[m,k] B[n,k]', scaled back
// by both tensors' scalings.
#ifndef MILEPOST_ENGINE_RUNTIME_CPU_FP8_LAYER_H_
#define MILEPOST_ENGINE_RUNTIME_CPU_FP8_LAYER_H_

#include <cstdint>
#include <vector>

#include "engine/kernels/cpu/matmul.h"
#include "engine/ops/fp8/fp8_contract.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/executor/op_binding.h"

namespace milepost::runtime {

struct Fp8Product {
  kernels::MatmulSpec spec;  // of the codes; for weight gradients the assigning one
  int a = 0;                 // which inputs of the op they are; 2 + a, 2 + b: their scalings
  int b = 1;
  int64_t a_byte = 0;  // where in the input the operand begins
  int64_t b_byte = 0;
  graph::ValueId c = graph::kNoValue;
  int64_t c_byte = 0;
  graph::ValueId bias = graph::kNoValue;
};

// Of a kLinear, kLinearBackwardInput or kLinearBackwardWeight with `fp8`. Weights that follow each
// other in memory are one product where that is a product's result; so are biases.
std::vector<Fp8Product> Fp8Products(const plan::Program& program, const graph::Op& op);

// kLinearBackwardWeight: of each bias its gradient, and where its columns of dy begin.
struct BiasColumns {
  graph::ValueId gradient;
  int64_t column;
  int64_t columns;
};
std::vector<BiasColumns> Fp8BiasColumns(const plan::Program& program, const graph::Op& op);

// Of a kQuantize.
kernels::Stacked StackedOf(const OpBinding& b);
bool QuantizesToE5M2(const OpBinding& b);

// The first step's scalings come from its own magnitudes: there are no earlier ones.
inline bool Calibrates(const OpBinding& b) { return b.OutputId(3) != graph::kNoValue; }

// Of kGatherAmaxes and kUpdateScalings.
inline int64_t QuantizedTensors(const OpBinding& b) {
  return static_cast<int64_t>(b.program.graph.scalings.size());
}

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_CPU_FP8_LAYER_H_
