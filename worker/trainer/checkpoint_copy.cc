#include "worker/trainer/checkpoint_copy.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace milepost::worker {
namespace {

absl::StatusOr<UniqueFd> NamelessFile(const std::string& folder) {
  UniqueFd file(open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file.ok()) return file;
  std::string path = absl::StrCat(folder, "/milepost-checkpoint-XXXXXX");  // no nameless files
  file.Reset(mkostemp(path.data(), O_CLOEXEC));
  if (!file.ok()) return absl::ErrnoToStatus(errno, absl::StrCat("making a file in ", folder));
  unlink(path.c_str());
  return file;
}

absl::Status Reserve(int file, int64_t bytes, const std::string& folder) {
  struct statvfs disk = {};
  const bool known = fstatvfs(file, &disk) == 0;
  const auto free = known ? static_cast<int64_t>(disk.f_bavail * disk.f_frsize) : bytes;
  int error = free < bytes ? ENOSPC : EINTR;  // a signal may interrupt it, which then begins anew
  while (error == EINTR) error = posix_fallocate(file, 0, bytes);
  if (error == 0) return absl::OkStatus();
  const std::string what =
      absl::StrCat("reserving ", bytes, " bytes for the copy of a checkpoint in ", folder,
                   ", where ", free, " are free: ", strerror(error));
  return error == ENOSPC || error == EDQUOT ? absl::ResourceExhaustedError(what)
                                            : absl::ErrnoToStatus(error, what);
}

}  // namespace

absl::StatusOr<CheckpointCopy> CheckpointCopy::Make(int64_t bytes, const std::string& folder) {
  if (bytes == 0) return CheckpointCopy();
  UniqueFd file;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
  if (!folder.empty()) {
    MP_ASSIGN_OR_RETURN(file, NamelessFile(folder));
    MP_RETURN_IF_ERROR(Reserve(file.get(), bytes, folder));
    flags = MAP_SHARED;
  }
  void* data =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, flags, file.get(), 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("no ", bytes,
                                                     " bytes of memory for the copy of a "
                                                     "checkpoint: ",
                                                     strerror(errno)));
  }
  return CheckpointCopy(static_cast<char*>(data), bytes, std::move(file));
}

CheckpointCopy::CheckpointCopy(CheckpointCopy&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      file_(std::move(other.file_)) {}

CheckpointCopy& CheckpointCopy::operator=(CheckpointCopy&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(file_, other.file_);
  return *this;
}

CheckpointCopy::~CheckpointCopy() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
}

// Only begins: it would be written by and by, and then all at once.
void CheckpointCopy::Written(int64_t begin, int64_t end) const {
  if (file_.ok()) sync_file_range(file_.get(), begin, end - begin, SYNC_FILE_RANGE_WRITE);
}

}  // namespace milepost::worker
