// What an op costs: the arithmetic behind flops_per_step, floors and "what bounds throughput".
//
//   const ops::Cost cost = ops::OpCost(graph, op);
#ifndef MILEPOST_ENGINE_OPS_COST_H_
#define MILEPOST_ENGINE_OPS_COST_H_

#include "engine/graph/graph.h"

namespace milepost::ops {

struct Cost {
  // Multiplications and additions of the op's matrix products, attention's included (the causal
  // half only). What else an op computes is bound by memory: see bytes.
  double flops = 0;
  // Every operand read once and every output written once (an accumulated one also read), as if
  // nothing stayed in a cache. Embedding: the rows used.
  double bytes = 0;
  // Of flops: products that an op before has made, and that are made once more.
  double repeated_flops = 0;
};

// Flat-group ops (kReduceGradients and later) cost nothing here (plan/passes/zero_pass.h).
Cost OpCost(const graph::Graph& graph, const graph::Op& op);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_COST_H_
