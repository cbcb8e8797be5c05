// GeGLU, the gated activation of Gemma's feed-forward layers (Shazeer 2020, "GLU Variants Improve
// Transformer"), with GELU's tanh form.
//
//   const ValueId y = ops::GeGlu(b, "layers.0.mlp", x);
//
// kGeGlu:         x[N,2M]: gate, then up -> y[N,M] = gelu(gate) up
// kGeGluBackward: x[N,2M], dy[N,M] -> dx[N,2M]
#ifndef MILEPOST_ENGINE_OPS_GEGLU_GEGLU_H_
#define MILEPOST_ENGINE_OPS_GEGLU_GEGLU_H_

#include "absl/strings/string_view.h"
#include "engine/graph/builder.h"

namespace milepost::ops {

graph::ValueId GeGlu(graph::Builder& b, absl::string_view name, graph::ValueId x);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_GEGLU_GEGLU_H_
