// Fuses GELUs into matrix products, whose libraries apply them to the sums before these are rounded
// and written: a pass over memory less, each time.
//
//   AddRecompute(graph, by_block);   // first: what it drops and makes again stays as it is
//   FuseGelu(graph);
//
//   kLinear, then kGelu of its result: one kLinear with `gelu`, whose first output is left out
//     where nobody else reads it
//   kLinearBackwardInput, then kGeluBackward of its result: one kLinearBackwardInput with `gelu`
//
// Both ops must stand side by side, in one phase and block. Left alone: the exact form, which
// cuBLASLt has not, fp32, 8-bit products, layers of several weights, widths that are no multiple of
// 8 (rows of the epilogue's operand are 16-byte aligned), and gradients that others add to.
//
// Results differ from those of the two ops by less than one rounding: docs/internals/numerics.md.
#ifndef MILEPOST_ENGINE_PLAN_PASSES_GELU_PASS_H_
#define MILEPOST_ENGINE_PLAN_PASSES_GELU_PASS_H_

#include "engine/graph/graph.h"

namespace milepost::plan {

void FuseGelu(graph::Graph& graph);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PASSES_GELU_PASS_H_
