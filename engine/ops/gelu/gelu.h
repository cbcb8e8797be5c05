// GELU (Hendrycks and Gimpel 2016).
//
//   const ValueId y = ops::Gelu(b, "h.0.mlp.gelu", x);
//
// kGelu:         x[N,M] -> y[N,M]; the tanh form, or with `exact` by the error function
// kGeluBackward: x, dy -> dx
#ifndef MILEPOST_ENGINE_OPS_GELU_GELU_H_
#define MILEPOST_ENGINE_OPS_GELU_GELU_H_

#include "absl/strings/string_view.h"
#include "engine/graph/builder.h"

namespace milepost::ops {

graph::ValueId Gelu(graph::Builder& b, absl::string_view name, graph::ValueId x,
                    bool exact = false);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_GELU_GELU_H_
