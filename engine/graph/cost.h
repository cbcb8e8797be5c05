// What an op costs: the arithmetic behind flops_per_step, floors and "what bounds throughput".
//
//   Cost cost = graph::OpCost(graph, op);
#ifndef MILEPOST_ENGINE_GRAPH_COST_H_
#define MILEPOST_ENGINE_GRAPH_COST_H_

#include "engine/graph/graph.h"

namespace milepost::graph {

struct Cost {
  // Multiplications and additions of the op's matrix products, attention's included (the causal
  // half only). What else an op computes is bound by memory: see bytes.
  double flops = 0;
  // Every operand read once and every output written once (an accumulated one also read), as if
  // nothing stayed in a cache. Embedding: the rows used.
  double bytes = 0;
};

// Flat-group ops (kReduceGradients and later) cost nothing here: plan/zero_pass.h counts them.
Cost OpCost(const Graph& graph, const Op& op);

}  // namespace milepost::graph

#endif  // MILEPOST_ENGINE_GRAPH_COST_H_
