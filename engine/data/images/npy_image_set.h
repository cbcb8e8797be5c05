// Images as plain pixels in a .npy array, with labels in another (image_set.h), memory-mapped.
#ifndef MILEPOST_ENGINE_DATA_IMAGES_NPY_IMAGE_SET_H_
#define MILEPOST_ENGINE_DATA_IMAGES_NPY_IMAGE_SET_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/data/images/image_set.h"

namespace milepost::data {

// train.npy -> train.labels.npy
std::string LabelsPathOf(const std::string& images_path);

// Errors are OpenImageSet's.
absl::StatusOr<std::shared_ptr<const ImageSet>> OpenNpyImageSet(const std::string& path);

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_IMAGES_NPY_IMAGE_SET_H_
