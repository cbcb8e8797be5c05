// Layers whose weights are directions times magnitudes (Liu et al., "DoRA", 2024), over low-rank
// adapters (ops/lora/lora.h). With v = W x + s B A x, an output o of a layer is
//   y_o = m_o / |W_o + s B_o A| v_o + bias_o
// The magnitude m begins as |W_o|. What is trained is its change d, which begins at 0: m = |W| + d.
// So the factor begins at exactly 1, and 16 bits hold small changes, which they would not beside m.
//
//   const ValueId norms = ops::DoraNorms(b, "attn.q.norms", w, a, b_up, 2.0, /*transposed=*/true);
//   const ValueId y = ops::Dora(b, "attn.qkv.dora", v,
//                               {{.column = 0, .norms = norms, .change = d, .bias = bias_q},
//                                {.column = 64, .bias = bias_k}});
//
// kDoraNorms:    w[K,M] (transposed: [M,K]), a[r,K], b[M,r] -> f32[2,M]: |W_o| and |W_o + s B_o A|.
//                They are constants to the backward, as in the paper (section 4.3)
// kDora:         v[N,M], of each part norms|kNoValue, d[Mi]|kNoValue, bias[Mi]|kNoValue -> y[N,M].
//                A part without norms is left as it is, but for its bias. So is an output whose W
//                and B A are all 0
// kDoraBackward: dy[N,M], v, of each part norms and d -> dv, of each part the gradients of d and of
//                bias
// Parts lie side by side: part i has the columns from lora.columns[i] to the next one's.
#ifndef MILEPOST_ENGINE_OPS_DORA_DORA_H_
#define MILEPOST_ENGINE_OPS_DORA_DORA_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/graph/builder.h"

namespace milepost::ops {

graph::ValueId DoraNorms(graph::Builder& b, absl::string_view name, graph::ValueId weight,
                         graph::ValueId down, graph::ValueId up, double scale, bool transposed);

struct DoraPart {
  int64_t column = 0;  // its first; the first part's is 0
  graph::ValueId norms = graph::kNoValue;
  graph::ValueId change = graph::kNoValue;  // there, if norms are
  graph::ValueId bias = graph::kNoValue;
};

// 1 to graph::kMostAdapters parts, in the order of their columns.
graph::ValueId Dora(graph::Builder& b, absl::string_view name, graph::ValueId v,
                    absl::Span<const DoraPart> parts);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_DORA_DORA_H_
