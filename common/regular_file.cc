#include "common/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace milepost {
namespace {

absl::Status Unreadable(const std::string& path, int error) {
  const std::string message = absl::StrCat(path, " cannot be read: ", std::strerror(error));
  // errno's own mapping has no place for it.
  if (error == ELOOP) return absl::InvalidArgumentError(message);
  return absl::Status(absl::ErrnoToStatusCode(error), message);
}

}  // namespace

absl::StatusOr<UniqueFd> OpenRegularFile(const std::string& path) {
  // Not blocking: a FIFO without a writer would hold the open for ever.
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd.ok()) return Unreadable(path, errno);
  struct stat info = {};
  if (fstat(fd.get(), &info) != 0) return Unreadable(path, errno);
  if (S_ISREG(info.st_mode)) return fd;
  return absl::InvalidArgumentError(
      absl::StrCat(path, S_ISDIR(info.st_mode) ? " is a folder, not a file" : " is no plain file"));
}

absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t max_bytes) {
  MP_ASSIGN_OR_RETURN(const UniqueFd fd, OpenRegularFile(path));
  std::string text;
  char piece[1 << 14];
  while (true) {
    const ssize_t got = read(fd.get(), piece, sizeof(piece));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Unreadable(path, errno);
    if (got == 0) return text;
    text.append(piece, static_cast<size_t>(got));
    if (text.size() > max_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is longer than ", max_bytes, " bytes"));
    }
  }
}

}  // namespace milepost
