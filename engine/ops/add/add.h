// Adds two values: a residual stream that no norm takes up.
//
//   const ValueId sum = ops::Add(b, "layers.0.attn_sum", residual, delta);
//
// kAdd: a[N,M], b[N,M] -> y[N,M] = a + b. Its gradient is that of both, so it has no backward op.
#ifndef MILEPOST_ENGINE_OPS_ADD_ADD_H_
#define MILEPOST_ENGINE_OPS_ADD_ADD_H_

#include "absl/strings/string_view.h"
#include "engine/graph/builder.h"

namespace milepost::ops {

graph::ValueId Add(graph::Builder& b, absl::string_view name, graph::ValueId residual,
                   graph::ValueId delta);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_ADD_ADD_H_
