#include "coordinator/store/owner_only.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

#include "absl/strings/match.h"

namespace milepost::coordinator {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kOfOthers = 077;

// Whatever else somebody keeps there is none of ours.
bool IsOurs(const std::string& name) {
  return name == "db" || name == "staging" || name == "files" || name == "store-id" ||
         absl::StartsWith(name, "audit.log") || absl::StartsWith(name, "epoch-") ||
         absl::StartsWith(name, "trash-");
}

// 0, or errno. What has gone meanwhile (another coordinator may be at work) is mended.
int Mend(const std::string& path) {
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) return errno == ENOENT ? 0 : errno;
  if (S_ISLNK(info.st_mode) || (info.st_mode & kOfOthers) == 0) return 0;
  if (chmod(path.c_str(), info.st_mode & 07777 & ~kOfOthers) == 0 || errno == ENOENT) return 0;
  return errno;
}

void MendOrWarn(const std::string& path) {
  const int error = Mend(path);
  if (error == 0) return;
  spdlog::warn("{}: others may read it, and its mode cannot be changed: {}", path,
               std::strerror(error));
}

void MendTree(const std::string& path) {
  MendOrWarn(path);
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(path, error))) return;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    MendTree(it->path());
  }
}

}  // namespace

void KeepToOwner(const std::string& dir) {
  std::error_code error;
  const std::string real = fs::canonical(dir, error);
  if (error) return;  // there is none: it will be made so, or refused with a reason
  MendOrWarn(real);
  for (fs::directory_iterator it(real, error), end; !error && it != end; it.increment(error)) {
    if (IsOurs(it->path().filename().string())) MendTree(it->path());
  }
}

}  // namespace milepost::coordinator
