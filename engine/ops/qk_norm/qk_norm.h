// RMS norms of every head of queries and of keys, before they are rotated (Dehghani et al. 2023).
//
//   const ValueId normed = ops::QkNorm(b, "layers.0.qk_norm", qkv, gamma_q, gamma_k, 32, 8, 1e-6);
//
// kQkNorm:         qkv[N,(H+2G)D], gamma_q[D], gamma_k[D] -> the same with every head of q and k
//                  normalised as by kRmsNorm
// kQkNormBackward: qkv, gamma_q, gamma_k, dout -> dqkv, dgamma_q, dgamma_k
#ifndef MILEPOST_ENGINE_OPS_QK_NORM_QK_NORM_H_
#define MILEPOST_ENGINE_OPS_QK_NORM_QK_NORM_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "engine/graph/builder.h"

namespace milepost::ops {

// Gammas: [D].
graph::ValueId QkNorm(graph::Builder& b, absl::string_view name, graph::ValueId qkv,
                      graph::ValueId gamma_q, graph::ValueId gamma_k, int64_t heads,
                      int64_t kv_heads, double epsilon, double gamma_offset = 0);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_QK_NORM_QK_NORM_H_
