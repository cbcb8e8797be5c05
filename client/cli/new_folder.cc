#include "client/cli/new_folder.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace milepost::client {
namespace {

namespace fs = std::filesystem;

absl::Status SyncFolder(const std::string& folder) {
  const UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.ok() || fsync(fd.get()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot sync ", folder));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<NewFolder>> NewFolder::Create(const std::string& target) {
  std::unique_ptr<NewFolder> folder(new NewFolder);
  folder->target_ = target;
  while (folder->target_.size() > 1 && folder->target_.back() == '/') folder->target_.pop_back();
  MP_RETURN_IF_ERROR(folder->CheckTarget());
  folder->path_ = folder->target_ + ".tmp-XXXXXX";
  if (mkdtemp(folder->path_.data()) == nullptr) {
    const int error = errno;
    folder->path_.clear();
    return absl::ErrnoToStatus(error, absl::StrCat("cannot make a folder beside ", target));
  }
  const mode_t mask = umask(0);
  umask(mask);
  chmod(folder->path_.c_str(), 0777 & ~mask);  // mkdtemp's is for its owner alone
  return folder;
}

NewFolder::~NewFolder() {
  std::error_code error;
  if (!path_.empty()) fs::remove_all(path_, error);
}

absl::Status NewFolder::Finish() {
  MP_RETURN_IF_ERROR(CheckTarget());
  if (rename(path_.c_str(), target_.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot put ", target_, " into place"));
  }
  path_.clear();
  const std::string parent = fs::path(target_).parent_path().string();
  return SyncFolder(parent.empty() ? "." : parent);
}

// An empty folder may be there: rename replaces it.
absl::Status NewFolder::CheckTarget() const {
  std::error_code error;
  if (fs::exists(target_, error) &&
      !(fs::is_directory(target_, error) && fs::is_empty(target_, error) && !error)) {
    return absl::AlreadyExistsError(absl::StrCat(
        target_, " exists and is not an empty folder; choose another --out, or remove it"));
  }
  return absl::OkStatus();
}

absl::Status WriteNewFile(const std::string& path, absl::string_view text) {
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  const auto size = static_cast<ssize_t>(text.size());
  if (!fd.ok() || write(fd.get(), text.data(), text.size()) != size || fsync(fd.get()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  }
  return absl::OkStatus();
}

}  // namespace milepost::client
