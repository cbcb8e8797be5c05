#include "engine/data/images/image_set.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/data/images/folder_set.h"
#include "engine/data/images/npy_image_set.h"
#include "engine/data/images/shard_set.h"

namespace milepost::data {
namespace {

absl::StatusOr<std::shared_ptr<const ImageSet>> OpenDirectory(const std::string& path,
                                                              const ImageSetOptions& options) {
  MP_ASSIGN_OR_RETURN(const std::vector<std::string> shards, ListFolder(path, IsShardName));
  if (!shards.empty()) {
    std::vector<std::string> paths;
    for (const std::string& shard : shards) paths.push_back(absl::StrCat(path, "/", shard));
    return OpenShardSet(paths);
  }
  return OpenFolderSet(path, options.class_names);
}

absl::StatusOr<std::shared_ptr<const ImageSet>> OpenAny(const std::string& path,
                                                        const ImageSetOptions& options) {
  if (absl::EndsWith(path, ".npy")) return OpenNpyImageSet(path);
  if (IsShardName(path)) {
    MP_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ExpandBraces(path));
    return OpenShardSet(paths);
  }
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return OpenDirectory(path, options);
  if (error) {
    return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot open the image set ", path));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": an image set is a folder of class folders, .tar shards, or an .npy array"));
}

}  // namespace

const std::vector<std::string>& ImageSet::class_names() const {
  static const std::vector<std::string>* const kNone = new std::vector<std::string>;
  return *kNone;
}

absl::StatusOr<std::shared_ptr<const ImageSet>> OpenImageSet(const std::string& path,
                                                             const ImageSetOptions& options) {
  MP_ASSIGN_OR_RETURN(std::shared_ptr<const ImageSet> set, OpenAny(path, options));
  if (set->size() == 0) return absl::InvalidArgumentError(absl::StrCat(path, ": no images"));
  for (int64_t i = 0; i < set->size(); ++i) {
    const int32_t label = set->LabelOf(i);
    if (label < 0 || (options.classes > 0 && label >= options.classes)) {
      return absl::InvalidArgumentError(absl::StrCat(set->NameOf(i), ": class ", label,
                                                     ", but the model has ", options.classes,
                                                     " classes, counted from 0"));
    }
  }
  return set;
}

}  // namespace milepost::data
