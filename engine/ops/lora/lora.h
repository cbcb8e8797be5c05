// The second product of low-rank adapters (Hu et al., "LoRA", 2021), added to what their layer
// makes. The first product is a linear layer of its own:
//
//   const ValueId base = ops::LinearRows(b, "attn.qkv", x, {q, k, v});
//   const ValueId h = ops::LinearRows(b, "attn.qkv.down", x, {a_q, a_v});      // A [r,K]
//   const ValueId y = ops::Lora(b, "attn.qkv.adapted", base, ops::Scale(b, "scaled", h, 2),
//                               {b_q, b_v}, {0, first_column_of_v});           // B [Mi,r]
//
// kLora:               base[N,M], h[N,P r], P weights w[Mi,r] -> y[N,M]: base, and in the Mi
//                      columns from lora.columns[i] on also h's i-th r columns times w_i^T
// kLoraBackwardInput:  dy[N,M], the weights -> dh[N,P r]
// kLoraBackwardWeight: h, dy -> the weights' gradients
// The gradient of base is dy itself.
#ifndef MILEPOST_ENGINE_OPS_LORA_LORA_H_
#define MILEPOST_ENGINE_OPS_LORA_LORA_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/graph/builder.h"

namespace milepost::ops {

// 1 to graph::kMostAdapters weights of one rank. `columns`: for each the first of its columns of y;
// ascending, and no two weights share one.
graph::ValueId Lora(graph::Builder& b, absl::string_view name, graph::ValueId base,
                    graph::ValueId h, absl::Span<const graph::ValueId> weights,
                    absl::Span<const int64_t> columns);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_LORA_LORA_H_
