// Pools of images: the largest of each window, or the mean of all pixels.
//
//   const ValueId y = ops::MaxPool(b, "maxpool", x, 3, {.stride = 2, .padding = 1});
//
// kMaxPool:             x[B,Y,X,C] -> y[B,Y',X',C], winners u8[B,Y',X',C]
// kMaxPoolBackward:     winners, dy, dy2|kNoValue -> dx
// kAveragePool:         x[B,Y,X,C] -> y[B,C]: over all pixels
// kAveragePoolBackward: dy -> dx
#ifndef MILEPOST_ENGINE_OPS_POOLING_POOLING_H_
#define MILEPOST_ENGINE_OPS_POOLING_POOLING_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "engine/graph/builder.h"

namespace milepost::ops {

graph::ValueId MaxPool(graph::Builder& b, absl::string_view name, graph::ValueId x, int64_t kernel,
                       const graph::WindowOptions& options);
graph::ValueId AveragePool(graph::Builder& b, absl::string_view name,
                           graph::ValueId x);  // -> [B,C]

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_POOLING_POOLING_H_
