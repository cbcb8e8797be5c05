// Images in class folders (image_set.h).
#ifndef MILEPOST_ENGINE_DATA_IMAGES_FOLDER_SET_H_
#define MILEPOST_ENGINE_DATA_IMAGES_FOLDER_SET_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/data/images/image_set.h"

namespace milepost::data {

bool IsImageName(absl::string_view name);  // *.jpg, *.jpeg, *.png in any case

// The names in a folder for which `wanted` holds, without those that begin with a dot, sorted byte
// by byte. Errors of the file system, with the path.
absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path,
                                                    bool (*wanted)(absl::string_view));

// OpenImageSet's errors.
absl::StatusOr<std::shared_ptr<const ImageSet>> OpenFolderSet(
    const std::string& path, const std::vector<std::string>& class_names);

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_IMAGES_FOLDER_SET_H_
