#include "common/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/unique_fd.h"

namespace milepost {

absl::Status WriteFileAtOnce(const std::string& path, absl::string_view text, mode_t mode) {
  const std::string temporary = absl::StrCat(path, ".tmp.", getpid());
  unlink(temporary.c_str());
  UniqueFd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  const bool written =
      fd.ok() && fchmod(fd.get(), mode) == 0 &&
      write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      fsync(fd.get()) == 0 && std::rename(temporary.c_str(), path.c_str()) == 0;
  if (written) return absl::OkStatus();
  const absl::Status status = absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  unlink(temporary.c_str());
  return status;
}

}  // namespace milepost
