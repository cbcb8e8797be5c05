// SwiGLU, the gated activation of Llama's feed-forward layers (Shazeer 2020).
//
//   const ValueId y = ops::SwiGlu(b, "layers.0.mlp", x);
//
// kSwiGlu:         x[N,2M]: gate, then up -> y[N,M] = silu(gate) up
// kSwiGluBackward: x[N,2M], dy[N,M] -> dx[N,2M]
#ifndef MILEPOST_ENGINE_OPS_SWIGLU_SWIGLU_H_
#define MILEPOST_ENGINE_OPS_SWIGLU_SWIGLU_H_

#include "absl/strings/string_view.h"
#include "engine/graph/builder.h"

namespace milepost::ops {

graph::ValueId SwiGlu(graph::Builder& b, absl::string_view name, graph::ValueId x);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_SWIGLU_SWIGLU_H_
