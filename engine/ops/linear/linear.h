// Linear layers: one product, with a bias or without.
//
//   const ValueId y = ops::Linear(b, "h.0.mlp.c_fc", x, weight, bias);
//
// kLinear:               x[N,K], w[K,M][, bias[M]] -> y[N,M] (Hugging Face's Conv1D layout)
//                        transposed: x[N,K], `parts` weights w[Mi,K] (torch's nn.Linear layout),
//                        then as many biases[Mi] or none -> y[N, sum of Mi], part beside part
//                        gelu: -> y|kNoValue, gelu(y)[N,M]; of one part, the tanh form
//                        fp8: codes of x[N,K], of the weights[M,K], their scalings, the biases
// kLinearBackwardInput:  dy[N,M], the weights[, dsum] -> dx[N,K]
//                        dsum: what other consumers of x added to its gradient
//                        gelu: dy, w, z[N,K] -> dz, where x = gelu(z)
//                        fp8: codes of dy[N,M], of the weights[K,M], their scalings[, dsum]
// kLinearBackwardWeight: x[N,K], dy[N,M] -> the weights' gradients, then the biases'
//                        fp8: codes of x[K,N], of dy[M,N], their scalings[, dy: where there are
//                        biases]
#ifndef MILEPOST_ENGINE_OPS_LINEAR_LINEAR_H_
#define MILEPOST_ENGINE_OPS_LINEAR_LINEAR_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/graph/builder.h"

namespace milepost::ops {

// `bias`: kNoValue for none.
graph::ValueId Linear(graph::Builder& b, absl::string_view name, graph::ValueId x,
                      graph::ValueId weight, graph::ValueId bias);

// y = x [w0; w1; ...]^T + biases: weights [Mi,K] as in torch's nn.Linear, one or several, whose
// results lie side by side. One product serves them all where they follow each other in their
// block: define them in this order, one after the other. `biases`: none, or one for each weight.
// `never_fp8`: it multiplies 16 bits where others multiply 8. Where x's rows are a convolution's
// windows, a weight may have that one's shape [Mi,c,k,k], with c k k = K.
graph::ValueId LinearRows(graph::Builder& b, absl::string_view name, graph::ValueId x,
                          absl::Span<const graph::ValueId> weights,
                          absl::Span<const graph::ValueId> biases = {}, bool never_fp8 = false);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_LINEAR_LINEAR_H_
