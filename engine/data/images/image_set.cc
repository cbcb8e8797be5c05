#include "engine/data/images/image_set.h"

#include <algorithm>
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

absl::Status HoldsNoHeads(const std::string& path, const ImageSetOptions& options) {
  if (options.heads.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": only .tar shards hold the labels of a further head themselves; give '",
                   options.heads[0], "' in data.labels a .npy with a label for each image"));
}

absl::StatusOr<std::shared_ptr<const ImageSet>> OpenDirectory(const std::string& path,
                                                              const ImageSetOptions& options) {
  MP_ASSIGN_OR_RETURN(const std::vector<std::string> shards, ListFolder(path, IsShardName));
  if (!shards.empty()) {
    std::vector<std::string> paths;
    for (const std::string& shard : shards) paths.push_back(absl::StrCat(path, "/", shard));
    return OpenShardSet(paths, options.heads);
  }
  MP_RETURN_IF_ERROR(HoldsNoHeads(path, options));
  return OpenFolderSet(path, options.class_names);
}

absl::StatusOr<std::shared_ptr<const ImageSet>> OpenAny(const std::string& path,
                                                        const ImageSetOptions& options) {
  if (absl::EndsWith(path, ".npy")) {
    MP_RETURN_IF_ERROR(HoldsNoHeads(path, options));
    return OpenNpyImageSet(path);
  }
  if (IsShardName(path)) {
    MP_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ExpandBraces(path));
    return OpenShardSet(paths, options.heads);
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

absl::Span<const int32_t> ImageSet::HeadLabels(size_t) const { return {}; }

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

absl::StatusOr<std::vector<std::vector<int32_t>>> ReadHeadLabels(
    const std::string& path, const ImageSet& set, absl::Span<const LabelOptions> wanted) {
  std::vector<std::vector<int32_t>> all;
  size_t held = 0;  // heads whose labels the set itself holds
  for (const LabelOptions& options : wanted) {
    std::vector<int32_t>& labels = all.emplace_back(static_cast<size_t>(set.size()));
    if (options.path.empty()) {
      const absl::Span<const int32_t> own = set.HeadLabels(held++);
      labels.assign(own.begin(), own.end());
      const auto bad = std::find_if(labels.begin(), labels.end(),
                                    [&](int32_t label) { return label >= options.classes; });
      if (bad == labels.end()) {
        const bool any =
            std::any_of(labels.begin(), labels.end(), [](int32_t label) { return label >= 0; });
        if (!any) return NoLabels(path, options.head, options.classes);
        continue;
      }
      return absl::InvalidArgumentError(
          absl::StrCat(set.NameOf(bad - labels.begin()), ": its .", options.head, ".cls is ", *bad,
                       ", but the head has ", options.classes, " classes, counted from 0"));
    }
    MP_ASSIGN_OR_RETURN(const auto file, LabelFile::Open(options.path, options.classes));
    if (file->size() != set.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(options.path, ": ", file->size(), " labels, but ", path, " has ", set.size(),
                       " images: give one label for each, -1 for none"));
    }
    MP_RETURN_IF_ERROR(file->Read(0, absl::MakeSpan(labels)));
    MP_RETURN_IF_ERROR(file->CheckAnyLabel(file->size(), options.head));
  }
  return all;
}

}  // namespace milepost::data
