// The sizes of a model that code for data, memory and text needs, for every model family. Pure and
// thread-safe.
//
//   const ModelSizes sizes = SizesOf(spec.model());
#ifndef MILEPOST_COMMON_SPEC_MODEL_SIZES_H_
#define MILEPOST_COMMON_SPEC_MODEL_SIZES_H_

#include <cstdint>

namespace milepost {

namespace v1 {
class ModelSpec;
}

struct ModelSizes {
  const char* family = "";  // the field of ModelSpec that is set: "gpt2"
  int64_t vocabulary = 0;   // token ids are below it; for images: classes
  int64_t width = 0;        // of the residual stream; for images: features before the classifier
  int64_t context = 0;      // tokens of the longest sequence; for images: 1
  int64_t layers = 0;       // that are alike; 0: a ResNet's
  bool images = false;      // samples are images with one class each, not tokens
  int64_t image_size = 0;   // pixels of a side
};

// All sizes are zero when no family is given. The values come from the spec and are not checked.
ModelSizes SizesOf(const v1::ModelSpec& model);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_MODEL_SIZES_H_
