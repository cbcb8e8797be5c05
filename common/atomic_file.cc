#include "common/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/unique_fd.h"

namespace milepost {

namespace {

bool WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      if (written == 0) errno = EIO;
      return false;
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

bool SyncFolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return fd.ok() && fsync(fd.get()) == 0;
}

// `place` puts the finished file where it belongs.
template <typename Place>
absl::Status Write(const std::string& path, absl::string_view text, mode_t mode, Place place) {
  const std::string temporary = absl::StrCat(path, ".tmp.", getpid());
  unlink(temporary.c_str());
  UniqueFd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  const bool written = fd.ok() && fchmod(fd.get(), mode) == 0 && WriteAll(fd.get(), text) &&
                       fsync(fd.get()) == 0 && place(temporary.c_str()) && SyncFolderOf(path);
  const int error = errno;
  unlink(temporary.c_str());
  if (written) return absl::OkStatus();
  return absl::ErrnoToStatus(error, absl::StrCat("cannot write ", path));
}

}  // namespace

absl::Status WriteFileAtOnce(const std::string& path, absl::string_view text, mode_t mode) {
  return Write(path, text, mode,
               [&](const char* temporary) { return std::rename(temporary, path.c_str()) == 0; });
}

absl::Status CreateFileAtOnce(const std::string& path, absl::string_view text, mode_t mode) {
  return Write(path, text, mode,
               [&](const char* temporary) { return link(temporary, path.c_str()) == 0; });
}

}  // namespace milepost
