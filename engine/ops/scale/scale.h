// Multiplies by a number.
//
//   const ValueId y = ops::Scale(b, "h.0.attn.qkv.scaled", x, 2.0);
//
// kScale: x[N,M] -> y[N,M] = scale x; also its own backward: dy -> dx
#ifndef MILEPOST_ENGINE_OPS_SCALE_SCALE_H_
#define MILEPOST_ENGINE_OPS_SCALE_SCALE_H_

#include "absl/strings/string_view.h"
#include "engine/graph/builder.h"

namespace milepost::ops {

graph::ValueId Scale(graph::Builder& b, absl::string_view name, graph::ValueId x, double scale);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_SCALE_SCALE_H_
