// Rotary positions (Su et al. 2021), with Llama 3's scaling of long contexts (RopeAttributes).
//
//   const ValueId table = ops::RopeTable(b, "rope", head_dim, {.theta = 500000});
//   const ValueId turned = ops::Rope(b, "layers.0.rope", qkv, table, heads, kv_heads);
//
// kRopeTable:    positions i32[T]|kNoValue -> table f32[T,D]: row t is the cosines of D/2 angles,
//                then their sines, of the position t or positions[t]
// kRope:         qkv[N,(H+2G)D], table, positions i32[N]|kNoValue -> the same with every head of q
//                and k rotated: element i of a head's first half with element i of its second
//                half, by the row's position as for kEmbedding
// kRopeBackward: dout, table, positions|kNoValue -> dqkv: rotated back
#ifndef MILEPOST_ENGINE_OPS_ROPE_ROPE_H_
#define MILEPOST_ENGINE_OPS_ROPE_ROPE_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "engine/graph/builder.h"

namespace milepost::ops {

// One table serves every layer: row t is of position t or, with cached_positions, of the t-th
// row's.
graph::ValueId RopeTable(graph::Builder& b, absl::string_view name, int64_t head_dim,
                         const graph::RopeAttributes& rope);

// `positions`: i32[N], each below the sequence length; kNoValue: the place in the sequence.
graph::ValueId Rope(graph::Builder& b, absl::string_view name, graph::ValueId qkv,
                    graph::ValueId table, int64_t heads, int64_t kv_heads,
                    graph::ValueId positions = graph::kNoValue);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_ROPE_ROPE_H_
