// What a Vision Transformer (Dosovitskiy et al. 2021) has around its layers: patches of an image as
// rows, the class token and positions in front of them, and the class token's row afterwards.
//
//   b.SetSequence(patches);
//   const ValueId rows = ops::ImagePatches(b, "patches", images, 16, mean, deviation);
//   const ValueId embedded = ops::LinearRows(b, "embedded", rows, {weight}, {bias});
//   b.SetSequence(patches + 1);
//   ValueId x = ops::PatchTokens(b, "tokens", embedded, cls, positions);
//   ...
//   b.SetSequence(1);
//   const ValueId features = ops::FirstRows(b, "class", x);
//
// Sizes: P patches of an image, T = P + 1, p pixels of a patch's side.
// kImagePatches:        images u8[B,Y,X,3] -> rows[BP,3pp] of (images / 255 - mean) / deviation. A
//                       row's numbers are those of red, then of green, then of blue, each by rows
//                       of pixels: as a convolution's weight [M,3,p,p] has them
// kPatchTokens:         rows[BP,C], cls[1,1,C], positions[1,T,C] -> x[BT,C]: of each image the
//                       class token, then its patches, all with their positions added
// kPatchTokensBackward: dx -> drows, dcls|kNoValue, dpositions|kNoValue
// kFirstRows:           x[BT,C] -> y[B,C], the first row of each image
// kFirstRowsBackward:   dy[B,C] -> dx[BT,C], 0 in all others
#ifndef MILEPOST_ENGINE_OPS_PATCHES_PATCHES_H_
#define MILEPOST_ENGINE_OPS_PATCHES_PATCHES_H_

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "engine/graph/builder.h"

namespace milepost::ops {

// `side`: pixels of a patch, which divides the image's. `mean` and `deviation`: by channel, of
// values in [0, 1].
graph::ValueId ImagePatches(graph::Builder& b, absl::string_view name, graph::ValueId images,
                            int64_t side, const std::array<double, graph::kImageChannels>& mean,
                            const std::array<double, graph::kImageChannels>& deviation);

graph::ValueId PatchTokens(graph::Builder& b, absl::string_view name, graph::ValueId rows,
                           graph::ValueId cls, graph::ValueId positions);

// The builder's rows are the images.
graph::ValueId FirstRows(graph::Builder& b, absl::string_view name, graph::ValueId x);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_PATCHES_PATCHES_H_
