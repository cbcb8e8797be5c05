// The sizes that data, memory and text need to know of a model, whatever its family.
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
  int64_t vocabulary = 0;   // token ids are below it; of images: classes
  int64_t width = 0;        // of the residual stream; of images: features that are classified
  int64_t context = 0;      // tokens of the longest sequence; of images: 1
  bool images = false;      // samples are images with a class each, not tokens
};

// All zero when no family is given. The values are the spec's own, not checked.
ModelSizes SizesOf(const v1::ModelSpec& model);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_MODEL_SIZES_H_
