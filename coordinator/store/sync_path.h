// Makes what is written to a file, or the names in a directory, outlast a loss of power.
#ifndef MILEPOST_COORDINATOR_STORE_SYNC_PATH_H_
#define MILEPOST_COORDINATOR_STORE_SYNC_PATH_H_

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/unique_fd.h"

namespace milepost::coordinator {

// Blocks on the disk. Thread-safe.
inline absl::Status SyncPath(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.ok() && fsync(fd.get()) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot sync ", path));
}

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_SYNC_PATH_H_
