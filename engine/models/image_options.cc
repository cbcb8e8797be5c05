#include "engine/models/image_options.h"

#include "absl/strings/str_cat.h"

namespace milepost::models {

absl::Status CheckImageOptions(absl::string_view family, const ModelOptions& options) {
  if (options.sequence != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.sequence_length: ", options.sequence, ", but an image is one sample"));
  }
  if (options.mode == Mode::kGeneration) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.", family, ": a classifier of images generates no text"));
  }
  return absl::OkStatus();
}

}  // namespace milepost::models
