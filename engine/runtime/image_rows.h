// Internal to backends: rows and channels of images.
#ifndef MILEPOST_ENGINE_RUNTIME_IMAGE_ROWS_H_
#define MILEPOST_ENGINE_RUNTIME_IMAGE_ROWS_H_

#include <cstdint>

#include "engine/graph/graph.h"

namespace milepost::runtime {

// Rows and channels of images.
struct ImageRows {
  explicit ImageRows(const graph::Shape& shape)
      : channels(shape[3]), rows(graph::Elements(shape) / channels) {}
  int64_t channels;
  int64_t rows;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_IMAGE_ROWS_H_
