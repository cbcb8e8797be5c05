// RMS norms of all heads of queries at once, and of all heads of keys, before they are rotated
// (OLMo et al. 2024, arXiv:2501.00656). Norms of each head are ops::QkNorm.
//
//   const ValueId normed = ops::WideQkNorm(b, "layers.0.qk_norm", qkv, gamma_q, gamma_k, 32, 8,
//                                          1e-6);
//
// kWideQkNorm:         qkv[N,(H+2G)D], gamma_q[HD], gamma_k[GD] -> the same with q and with k
//                      normalised as by kRmsNorm, rstd_q f32[N], rstd_k f32[N]
// kWideQkNormBackward: qkv, gamma_q, gamma_k, rstd_q, rstd_k, dout -> dqkv, dgamma_q, dgamma_k
//
// Kernels are those of kRmsNorm, over columns of qkv.
#ifndef MILEPOST_ENGINE_OPS_WIDE_QK_NORM_WIDE_QK_NORM_H_
#define MILEPOST_ENGINE_OPS_WIDE_QK_NORM_WIDE_QK_NORM_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "engine/graph/builder.h"

namespace milepost::ops {

graph::ValueId WideQkNorm(graph::Builder& b, absl::string_view name, graph::ValueId qkv,
                          graph::ValueId gamma_q, graph::ValueId gamma_k, int64_t heads,
                          int64_t kv_heads, double epsilon, double gamma_offset = 0);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_WIDE_QK_NORM_WIDE_QK_NORM_H_
