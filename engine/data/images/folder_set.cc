#include "engine/data/images/folder_set.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/regular_file.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace milepost::data {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{256} << 20;

absl::Status ReadFile(const std::string& path, int64_t limit, std::string* out) {
  auto opened = OpenRegularFile(path);
  if (!opened.ok()) return Annotate(opened.status(), "the image");
  const UniqueFd fd = *std::move(opened);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot stat ", path));
  }
  if (info.st_size == 0) return absl::InvalidArgumentError(absl::StrCat(path, ": empty file"));
  if (info.st_size > kMaxFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": ", info.st_size, " bytes; images of at most ", kMaxFileBytes, " bytes are read"));
  }
  out->resize(static_cast<size_t>(std::min<int64_t>(limit, info.st_size)));
  size_t filled = 0;
  while (filled < out->size()) {
    const ssize_t got = read(fd.get(), out->data() + filled, out->size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
    if (got == 0) break;  // cut while it was read: the decoder says so
    filled += static_cast<size_t>(got);
  }
  out->resize(filled);
  return absl::OkStatus();
}

class FolderSet : public ImageSet {
 public:
  FolderSet(std::string root, std::vector<std::string> class_names)
      : root_(std::move(root)), class_names_(std::move(class_names)) {}

  // All of one class, in order.
  void Add(int32_t label, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      begins_.push_back(static_cast<int64_t>(names_.size()));
      labels_.push_back(label);
      names_ += name;
    }
  }
  void Finish() {
    begins_.push_back(static_cast<int64_t>(names_.size()));
    names_.shrink_to_fit();
    begins_.shrink_to_fit();
    labels_.shrink_to_fit();
  }

  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  int32_t LabelOf(int64_t image) const override { return labels_[static_cast<size_t>(image)]; }
  std::string NameOf(int64_t image) const override {
    const auto at = static_cast<size_t>(image);
    const auto begin = static_cast<size_t>(begins_[at]), end = static_cast<size_t>(begins_[at + 1]);
    return absl::StrCat(root_, "/", class_names_[static_cast<size_t>(labels_[at])], "/",
                        absl::string_view(names_).substr(begin, end - begin));
  }
  absl::Status Read(int64_t image, int64_t limit, std::string* storage,
                    StoredImage* out) const override {
    MP_RETURN_IF_ERROR(ReadFile(NameOf(image), limit, storage));
    *out = {.bytes = *storage};
    return absl::OkStatus();
  }
  const std::vector<std::string>& class_names() const override { return class_names_; }

 private:
  std::string root_;
  std::vector<std::string> class_names_;
  std::string names_;            // end to end
  std::vector<int64_t> begins_;  // of each name, and the end
  std::vector<int32_t> labels_;
};

bool Any(absl::string_view) { return true; }

absl::StatusOr<std::vector<std::string>> ClassFolders(const std::string& path) {
  MP_ASSIGN_OR_RETURN(std::vector<std::string> names, ListFolder(path, Any));
  const auto is_file = [&](const std::string& name) {
    std::error_code error;
    return !std::filesystem::is_directory(absl::StrCat(path, "/", name), error);
  };
  names.erase(std::remove_if(names.begin(), names.end(), is_file), names.end());
  if (names.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": no class folders and no .tar shards in it; an image folder is ", path,
                     "/<class>/*.jpg"));
  }
  return names;
}

}  // namespace

bool IsImageName(absl::string_view name) {
  const std::string lower = absl::AsciiStrToLower(name);
  return absl::EndsWith(lower, ".jpg") || absl::EndsWith(lower, ".jpeg") ||
         absl::EndsWith(lower, ".png");
}

absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path,
                                                    bool (*wanted)(absl::string_view)) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path.c_str()), &closedir);
  if (folder == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot open the folder ", path));
  }
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = readdir(folder.get())) {
    if (entry->d_name[0] != '.' && wanted(entry->d_name)) names.emplace_back(entry->d_name);
    errno = 0;
  }
  if (errno != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot list the folder ", path));
  }
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<std::shared_ptr<const ImageSet>> OpenFolderSet(
    const std::string& path, const std::vector<std::string>& class_names) {
  MP_ASSIGN_OR_RETURN(const std::vector<std::string> own, ClassFolders(path));
  const std::vector<std::string>& meant = class_names.empty() ? own : class_names;
  auto set = std::make_shared<FolderSet>(path, meant);
  for (const std::string& name : own) {
    const auto place = std::lower_bound(meant.begin(), meant.end(), name);
    const std::string folder = absl::StrCat(path, "/", name);
    if (place == meant.end() || *place != name) {
      return absl::InvalidArgumentError(
          absl::StrCat(folder, ": the training data has no class of that name"));
    }
    MP_ASSIGN_OR_RETURN(const std::vector<std::string> images, ListFolder(folder, IsImageName));
    if (images.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(folder, ": a class without images (*.jpg, *.jpeg, *.png)"));
    }
    set->Add(static_cast<int32_t>(place - meant.begin()), images);
  }
  set->Finish();
  return set;
}

}  // namespace milepost::data
