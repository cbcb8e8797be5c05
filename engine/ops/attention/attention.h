// Attention of packed queries, keys and values (Dao et al. 2022 for how it is computed), and the
// form that continues a text from a cache of its keys and values.
//
//   const ValueId out = ops::Attention(b, "h.0.attn", qkv, {.heads = 12});
//
// kAttention:         qkv[N,(H+2G)D], documents i32[N]|kNoValue -> out[N,HD], lse f32[B,H,T]
//                     scale 1/sqrt(D); head h reads the keys and values of head h / (H/G).
//                     documents: a position sees those of its own id only. Ids never fall along a
//                     sequence. window: of those, it sees itself and the window - 1 before it
//                     (Beltagy et al. 2020)
// kCachedAttention:   qkv[N,(H+2G)D], positions i32[N], cache[S,2,G,P,D], texts i32[N]|kNoValue ->
//                     out[N,HD], cache, in place; of one sequence (B = 1). How many rows there are
//                     is given at run time, so that a chunk of text may be partly filled: row r's
//                     keys and values are put into the cache of the text texts[0] (kNoValue: 0) at
//                     its position, positions[0] + r, and its query sees that text's cached ones up
//                     to that, in its window. out of other rows: zeros. With rows_apart each
//                     row is of a text of its own, texts[r], at positions[r]; where texts[r] is -1
//                     nothing is kept, and out is zeros. (Rows behind those that count are such.)
// kAttentionBackward: qkv, out, lse, dout, documents|kNoValue -> dqkv
//                     query_parts P (both): a context rank computes the queries of its part
//                     (QueryPart in attention_contract.h). Of the others out, lse and dqkv are 0;
//                     dqkv's keys and values are what its own queries make of them.
#ifndef MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_H_
#define MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "engine/graph/builder.h"

namespace milepost::ops {

struct AttentionOptions {
  int64_t heads = 1;
  int64_t kv_heads = 0;  // 0: as many as heads
  bool causal = true;
  graph::ValueId documents =
      graph::kNoValue;  // i32[N], ids of documents that do not see each other
  int64_t window = 0;   // causal: positions that one sees, itself among them; 0: all up to itself
};

// kCachedAttention where the builder has cached_positions.
graph::ValueId Attention(graph::Builder& b, absl::string_view name, graph::ValueId qkv,
                         const AttentionOptions& options);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_H_
