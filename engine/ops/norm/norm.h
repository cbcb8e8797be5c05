// Layer norms and RMS norms (Ba et al. 2016; Zhang and Sennrich 2019), alone or over what is first
// added to the residual stream.
//
//   const auto [y, mean, rstd] = ops::LayerNorm(b, "h.0.ln_1", x, gamma, beta);
//
// kLayerNorm:         x[N,C], gamma[C], beta[C] -> y[N,C], mean f32[N], rstd f32[N]
// kResidualLayerNorm: residual[N,C], delta[N,C], gamma, beta -> sum[N,C], y[N,C], mean, rstd
//                     sum = residual + dropout(delta); y = LayerNorm(sum)
// kRmsNorm:           x[N,C], gamma[C] -> y[N,C] = x rstd (gamma_offset + gamma), rstd f32[N]
// kResidualRmsNorm:   residual[N,C], delta[N,C], gamma -> sum[N,C], y[N,C], rstd
//                     sum = residual + delta; y = RmsNorm(sum)
// kLayerNormBackward: x, gamma, mean, rstd, dy, dsum|kNoValue -> dx, dgamma, dbeta
//                     dx = dsum + LayerNorm backward(dy); dsum: what other consumers of x added to
//                     its gradient
// kResidualLayerNormBackward: sum, gamma, mean, rstd, dy, dsum|kNoValue -> dx, ddelta|kNoValue,
//                     dgamma, dbeta. dx as above: the gradient of sum, and so of the residual.
//                     ddelta = dropout mask(dx); without dropout ddelta is dx (kNoValue)
// kRmsNormBackward:   x, gamma, rstd, dy, dsum|kNoValue -> dx, dgamma. dx as above. It serves
//                     kResidualRmsNorm too, where x is sum and dx the gradient of both the residual
//                     and delta
#ifndef MILEPOST_ENGINE_OPS_NORM_NORM_H_
#define MILEPOST_ENGINE_OPS_NORM_NORM_H_

#include "absl/strings/string_view.h"
#include "engine/graph/builder.h"

namespace milepost::ops {

struct LayerNormResult {
  graph::ValueId y = graph::kNoValue;
  graph::ValueId mean = graph::kNoValue;
  graph::ValueId rstd = graph::kNoValue;
};
LayerNormResult LayerNorm(graph::Builder& b, absl::string_view name, graph::ValueId x,
                          graph::ValueId gamma, graph::ValueId beta, double epsilon = 1e-5);

struct ResidualLayerNormResult {
  graph::ValueId sum = graph::kNoValue;
  graph::ValueId y = graph::kNoValue;
  graph::ValueId mean = graph::kNoValue;
  graph::ValueId rstd = graph::kNoValue;
};
ResidualLayerNormResult ResidualLayerNorm(graph::Builder& b, absl::string_view name,
                                          graph::ValueId residual, graph::ValueId delta,
                                          graph::ValueId gamma, graph::ValueId beta, double dropout,
                                          double epsilon = 1e-5);

struct RmsNormResult {
  graph::ValueId y = graph::kNoValue;
  graph::ValueId rstd = graph::kNoValue;
};
RmsNormResult RmsNorm(graph::Builder& b, absl::string_view name, graph::ValueId x,
                      graph::ValueId gamma, double epsilon, double gamma_offset = 0);

struct ResidualRmsNormResult {
  graph::ValueId sum = graph::kNoValue;
  graph::ValueId y = graph::kNoValue;
  graph::ValueId rstd = graph::kNoValue;
};
ResidualRmsNormResult ResidualRmsNorm(graph::Builder& b, absl::string_view name,
                                      graph::ValueId residual, graph::ValueId delta,
                                      graph::ValueId gamma, double epsilon,
                                      double gamma_offset = 0);

// Leaves the norm alone of an op that adds to the residual stream first
// (OpDefinition::after_sum): it reads the sum, which another op has made.
void LeaveOutSum(graph::Op& op);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_NORM_NORM_H_
