// What expert ranks exchange: those that share out a layer's experts among them (Lepikhin et al.,
// "GShard", 2020). plan/passes/experts_pass.h puts the ops into a graph.
//
// kExpertSegments:  offsets i32[E+1] (ops/experts/experts.h) -> segments i32[E+1]: of R ranks the
//                   r-th has experts [r E/R, (r+1) E/R), and will get all rows for them. Those of
//                   the first rank come first, and of one rank those of the first expert. Rows
//                   [segments[i], segments[i+1]) are of rank i / (E/R) and of the own expert
//                   i % (E/R).
// kRowsToExperts:   y[P,C], offsets, segments -> z[Q,C]: these rows. Q are room for whatever is
//                   picked; those behind the last segment are undefined.
// kRowsFromExperts: z[Q,C], offsets, segments -> y[P,C]: the way back, and each other's gradient.
//
// Within one rank all three copy.
#ifndef MILEPOST_ENGINE_OPS_EXPERT_PARALLEL_EXPERT_PARALLEL_H_
#define MILEPOST_ENGINE_OPS_EXPERT_PARALLEL_EXPERT_PARALLEL_H_

#include "engine/graph/graph.h"
#include "engine/ops/expert_parallel/expert_parallel_contract.h"

namespace milepost::ops {

struct ExpertRanks {
  int64_t experts = 1;  // E
  int64_t ranks = 1;    // R, which divides E
};

graph::Op ExpertSegmentsOp(graph::ValueId offsets, graph::ValueId segments, const ExpertRanks& who);
graph::Op RowsToExpertsOp(graph::ValueId y, graph::ValueId offsets, graph::ValueId segments,
                          graph::ValueId z, const ExpertRanks& who);
graph::Op RowsFromExpertsOp(graph::ValueId z, graph::ValueId offsets, graph::ValueId segments,
                            graph::ValueId y, const ExpertRanks& who);

inline bool IsRowsExchange(graph::OpKind kind) {
  return kind == graph::OpKind::kRowsToExperts || kind == graph::OpKind::kRowsFromExperts;
}

// An op by which expert ranks tell or send each other something.
inline bool IsExpertExchange(graph::OpKind kind) {
  return kind == graph::OpKind::kExpertSegments || IsRowsExchange(kind);
}

// Of an IsRowsExchange.
kernels::ExpertRowsShape ExpertRowsOf(const graph::Graph& graph, const graph::Op& op);

// What a rank sends by an IsExpertExchange, where every expert gets as many rows.
double EvenExchangeBytes(const graph::Graph& graph, const graph::Op& op);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_EXPERT_PARALLEL_EXPERT_PARALLEL_H_
