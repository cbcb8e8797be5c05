// Internal to backends and to the rooms of ops on images.
#ifndef MILEPOST_ENGINE_RUNTIME_EXECUTOR_IMAGE_OPS_H_
#define MILEPOST_ENGINE_RUNTIME_EXECUTOR_IMAGE_OPS_H_

#include <cstdint>

#include "engine/runtime/executor/op_binding.h"

namespace milepost::runtime {

// Rows and channels of images.
struct ImageRows {
  explicit ImageRows(const graph::Shape& shape)
      : channels(shape[3]), rows(graph::Elements(shape) / channels) {}
  int64_t channels;
  int64_t rows;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_EXECUTOR_IMAGE_OPS_H_
