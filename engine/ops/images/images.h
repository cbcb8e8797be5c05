// Images as a model takes them.
//
//   const ValueId x = ops::NormalizeImages(b, "images.x", b.Images(224, 224), mean, deviation);
//
// kNormalizeImages: images u8[B,Y,X,C] -> x[B,Y,X,C] = (images / 255 - mean) / deviation
#ifndef MILEPOST_ENGINE_OPS_IMAGES_IMAGES_H_
#define MILEPOST_ENGINE_OPS_IMAGES_IMAGES_H_

#include <array>

#include "absl/strings/string_view.h"
#include "engine/graph/builder.h"

namespace milepost::ops {

// By channel, of values in [0, 1].
graph::ValueId NormalizeImages(graph::Builder& b, absl::string_view name, graph::ValueId images,
                               const std::array<double, graph::kImageChannels>& mean,
                               const std::array<double, graph::kImageChannels>& deviation);

// For ops that normalise images themselves.
void CheckDeviations(graph::Builder& b, absl::string_view name,
                     const std::array<double, graph::kImageChannels>& deviation);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_IMAGES_IMAGES_H_
