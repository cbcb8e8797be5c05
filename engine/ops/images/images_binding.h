// What the binders of images share.
#ifndef MILEPOST_ENGINE_OPS_IMAGES_IMAGES_BINDING_H_
#define MILEPOST_ENGINE_OPS_IMAGES_IMAGES_BINDING_H_

#include <cstddef>
#include <vector>

#include "engine/dtype/half.h"
#include "engine/runtime/executor/op_binding.h"

namespace milepost::ops {

// What each byte of each channel becomes: 256 numbers a channel.
template <typename T>
std::vector<T> ChannelTable(const runtime::OpBinding& b) {
  const graph::ImageAttributes& a = b.attributes().image;
  std::vector<T> table(256 * graph::kImageChannels);
  for (size_t i = 0; i < table.size(); ++i) {
    const double value =
        (static_cast<double>(i % 256) / 255 - a.mean[i / 256]) / a.deviation[i / 256];
    table[i] = FromFloat<T>(static_cast<float>(value));
  }
  return table;
}

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_IMAGES_IMAGES_BINDING_H_
