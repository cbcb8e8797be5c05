#include "worker/script/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/unique_fd.h"

namespace milepost::worker {

absl::StatusOr<SharedMemory> SharedMemory::Map(const ScriptMemory& memory,
                                               const std::string& processes, bool write,
                                               SharedMemory* before) {
  if (memory.bytes == 0) return SharedMemory();
  const std::string path = absl::StrCat(processes, "/", memory.pid, "/fd/", memory.fd);
  const UniqueFd fd(open(path.c_str(), (write ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK));
  if (!fd.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "memory: ", std::string(absl::ErrnoToStatus(errno, "cannot open " + path).message())));
  }
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  struct stat status = {};
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd.get(), &status) != 0 ||
      status.st_size < memory.bytes) {
    return absl::InvalidArgumentError(absl::StrCat("memory: ", path, " is not a memfd of ",
                                                   memory.bytes,
                                                   " bytes that is sealed from shrinking"));
  }
  const File file = {status.st_dev, status.st_ino};
  if (before != nullptr && before->data_ != nullptr && before->file_ == file &&
      before->bytes_ == memory.bytes) {
    return std::move(*before);
  }
  const int protection = write ? PROT_READ | PROT_WRITE : PROT_READ;
  void* data =
      mmap(nullptr, static_cast<size_t>(memory.bytes), protection, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return absl::ErrnoToStatus(errno, "cannot map the script's memory");
  return SharedMemory(static_cast<char*>(data), memory.bytes, file);
}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(file_, other.file_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
}

}  // namespace milepost::worker
