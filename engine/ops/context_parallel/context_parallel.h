// What context ranks exchange: those that divide the tokens of the same sequences among them, and
// for attention its heads (Jacobs et al., "DeepSpeed Ulysses", 2023). plan/passes/context_pass.h
// puts the ops into a graph.
//
// kTokensToHeads: x[B*T/R,(H+2G)D] -> y[B*T,(H+2G)/R*D]: of R ranks the r-th gives all heads of
//                 tokens [r T/R, (r+1) T/R) of each sequence, and gets queries' heads
//                 [r H/R, (r+1) H/R) of all tokens, and such a part of the keys' and of the
//                 values'. Where R is a multiple of G, that is the one head which these queries
//                 read: R/G neighbours get the same. Without heads of keys (kv_heads 0) there are
//                 queries alone. With query_parts P, P neighbours get the same heads, as if they
//                 were one of R/P ranks.
// kHeadsToTokens: the way back, and each other's gradient: of heads that ranks share, the sum of
//                 what each makes of it, in fp32 and rounded once. (Of P ranks, each has made
//                 attention of other queries, and has zeros for the rest.)
//
// Within one rank both copy.
#ifndef MILEPOST_ENGINE_OPS_CONTEXT_PARALLEL_CONTEXT_PARALLEL_H_
#define MILEPOST_ENGINE_OPS_CONTEXT_PARALLEL_CONTEXT_PARALLEL_H_

#include "engine/graph/graph.h"
#include "engine/ops/context_parallel/context_parallel_contract.h"

namespace milepost::ops {

// `attention`: the attributes of the op whose heads they are, before these are divided.
graph::Op TokensToHeadsOp(graph::ValueId x, graph::ValueId y, const graph::Attributes& attention);
// Of the attention's output, which has no heads of keys.
graph::Op HeadsToTokensOp(graph::ValueId x, graph::ValueId y, const graph::Attributes& attention);

inline bool IsHeadsExchange(graph::OpKind kind) {
  return kind == graph::OpKind::kTokensToHeads || kind == graph::OpKind::kHeadsToTokens;
}

// Of an op of either kind.
kernels::HeadsExchangeShape HeadsExchangeOf(const graph::Graph& graph, const graph::Op& op);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_CONTEXT_PARALLEL_CONTEXT_PARALLEL_H_
