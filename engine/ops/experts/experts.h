// Mixtures of experts (Shazeer et al. 2017; Jiang et al. 2024): a router picks S of E layers for
// each row, and what these make is added up. No row is dropped: N rows make N*S, whatever is
// picked, so all sizes are known before a step.
//
//   const ExpertRoutes routes = ops::RouteExperts(b, "mlp.routes", logits, {.per_token = 2});
//   const ValueId rows = ops::DispatchRows(b, "mlp.rows", x, routes);
//   const ValueId y = ops::ExpertLinear(b, "mlp.experts", rows, routes, weights, 1);
//   ValueId out = ops::CombineRows(b, "mlp.delta", y, routes);
//
// kRouteExperts:         logits[N,E], before f32[E+1]|kNoValue -> weights f32[N,S], chosen
//                        i32[N,S], slots i32[N,S], offsets i32[E+1], counts f32[E+1]|kNoValue.
//                        chosen: the experts with the S largest logits, in that order; the first of
//                        equal ones. weights: theirs of the softmax over all E, in fp32; normalize:
//                        over their sum. The N*S rows lie by expert, and of one expert in the
//                        order of n; expert e has [offsets[e], offsets[e+1]), and slots says where
//                        the row of (n, s) is. In generation rows that do not count lie behind
//                        them.
//                        counts: before (0 without it) plus the rows of each expert, and behind
//                        these plus N; exact below 2^24. Its gradient is the slopes of
//                        kExpertBalance, and so is that of before: so they reach all stages of a
//                        pipeline
// kRouteExpertsBackward: logits, weights, chosen, dweights f32[N,S], slopes f32[E+1]|kNoValue
//                        -> dlogits[N,E]. Linear in dweights and slopes: where tensor ranks divide
//                        the experts' layers (divides_columns), a sum of the ranks' follows, and
//                        tensor rank 0 alone adds the slopes
// kDispatchRows:         x[N,C], slots -> y[N*S,C], y[slots[n,s]] = x[n]
// kDispatchRowsBackward: dy[N*S,C], slots -> dx[N,C], the sum over s, in its order
// kExpertLinear:         x[N*S,K], offsets, E times `parts` weights w[Mi,K] -> y[N*S, sum of Mi],
//                        part beside part, each row by its expert's weights
//                        Where expert ranks share the experts out (ops/expert_parallel), E is how
//                        many a rank has, and offsets has several times as many segments: the i-th
//                        is of expert i % E. Rows behind the last one are undefined
// kExpertLinearBackwardInput:  dy, offsets, the weights -> dx[N*S,K]
// kExpertLinearBackwardWeight: x, dy, offsets -> the weights' gradients; zero without rows
// kCombineRows:          y[N*S,C], weights, slots -> out[N,C], the sum over s of weights[n,s]
//                        y[slots[n,s]], in fp32 and in the order of s
// kCombineRowsBackward:  y, weights, slots, dout -> dy, dweights f32[N,S]
// kExpertBalance:        targets i32[N], counts f32[E+1] of L layers -> slopes f32[E+1]: what the
//                        losses beside the model's own add to its gradient, for each layer's
//                        probabilities of an expert, p, and for the square of log sum exp of a
//                        row's logits. The losses are
//                          balance_loss E sum over e of f(e) P(e), f(e) = (rows of e) / (L N) and
//                            P(e) = mean of p(e), over all layers' rows (Fedus et al. 2021, eq. 4)
//                          z_loss times the mean of those squares (Zoph et al. 2022, eq. 5)
//                        times the first head's weight and the micro-batch's share of the global
//                        batch's targets. No number reports them
#ifndef MILEPOST_ENGINE_OPS_EXPERTS_EXPERTS_H_
#define MILEPOST_ENGINE_OPS_EXPERTS_EXPERTS_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/graph/builder.h"

namespace milepost::ops {

// kExpertLinear and its backwards.
inline bool IsExpertProduct(graph::OpKind kind) {
  return kind == graph::OpKind::kExpertLinear ||
         kind == graph::OpKind::kExpertLinearBackwardInput ||
         kind == graph::OpKind::kExpertLinearBackwardWeight;
}

struct RouteOptions {
  int64_t per_token = 1;  // S, in [1, E]
  bool normalize = true;
  bool counts = false;                      // for ExpertBalance
  graph::ValueId before = graph::kNoValue;  // counts of the layers so far; none: it is the first
};

// Values of kRouteExperts.
struct ExpertRoutes {
  graph::ValueId weights = graph::kNoValue;
  graph::ValueId slots = graph::kNoValue;
  graph::ValueId offsets = graph::kNoValue;
  graph::ValueId counts = graph::kNoValue;
};

ExpertRoutes RouteExperts(graph::Builder& b, absl::string_view name, graph::ValueId logits,
                          const RouteOptions& options);

graph::ValueId DispatchRows(graph::Builder& b, absl::string_view name, graph::ValueId x,
                            const ExpertRoutes& routes);

// `weights`: of the first expert its parts, then of the second, ... One product serves an expert's
// parts where they follow each other in their block: define them one after the other.
graph::ValueId ExpertLinear(graph::Builder& b, absl::string_view name, graph::ValueId x,
                            const ExpertRoutes& routes, absl::Span<const graph::ValueId> weights,
                            int64_t parts);

graph::ValueId CombineRows(graph::Builder& b, absl::string_view name, graph::ValueId y,
                           const ExpertRoutes& routes);

struct ExpertLosses {
  double balance_loss = 0;
  double z_loss = 0;
};

// After all layers and before the loss, in training alone. `counts`: of the last layer.
graph::ValueId ExpertBalance(graph::Builder& b, absl::string_view name, graph::ValueId targets,
                             graph::ValueId counts, const ExpertLosses& losses);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_EXPERTS_EXPERTS_H_
