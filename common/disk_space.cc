#include "common/disk_space.h"

#include <sys/statvfs.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/error_details.h"

namespace milepost {

absl::StatusOr<uint64_t> FreeBytes(const std::string& path) {
  struct statvfs info;
  if (statvfs(path.c_str(), &info) != 0) {
    return absl::InternalError(absl::StrCat("statvfs ", path, ": ", std::strerror(errno)));
  }
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

absl::Status DiskFull(const std::string& dir, uint64_t free, uint64_t needed) {
  return Refusal(v1::ERROR_REASON_DISK_FULL, "",
                 absl::StrCat("the disk of ", dir, " is full: ", free >> 20, " MiB are free, ",
                              needed >> 20, " are needed; free some space (`milepost checkpoint ",
                              "purge NAME` deletes a checkpoint for good) and try again"));
}

}  // namespace milepost
