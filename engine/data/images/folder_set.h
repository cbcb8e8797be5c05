// Images in class folders (image_set.h).
#ifndef MILEPOST_ENGINE_DATA_IMAGES_FOLDER_SET_H_
#define MILEPOST_ENGINE_DATA_IMAGES_FOLDER_SET_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/data/images/image_set.h"

namespace milepost::data {

bool IsImageName(absl::string_view name);  // *.jpg, *.jpeg, *.png in upper or lower case

// The names in a folder for which `wanted` is true, sorted byte by byte, without names that begin
// with a dot. Errors of the file system have the path.
absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path,
                                                    bool (*wanted)(absl::string_view));

// Errors are OpenImageSet's.
absl::StatusOr<std::shared_ptr<const ImageSet>> OpenFolderSet(
    const std::string& path, const std::vector<std::string>& class_names);

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_IMAGES_FOLDER_SET_H_
