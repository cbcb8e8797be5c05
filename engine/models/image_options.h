// What the families that classify images ask of their options alike. Internal to the families.
#ifndef MILEPOST_ENGINE_MODELS_IMAGE_OPTIONS_H_
#define MILEPOST_ENGINE_MODELS_IMAGE_OPTIONS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/models/model.h"

namespace milepost::models {

// INVALID_ARGUMENT: a sample is not one image, or the mode is generation. `family`: "resnet".
absl::Status CheckImageOptions(absl::string_view family, const ModelOptions& options);

}  // namespace milepost::models

#endif  // MILEPOST_ENGINE_MODELS_IMAGE_OPTIONS_H_
