#include "engine/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/unique_fd.h"

namespace milepost::data {

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  // Not blocking: a FIFO without a writer would hold the open for ever.
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.ok()) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot open the data file ", path));
  }
  struct stat info;
  if (fstat(fd.get(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot stat ", path));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  if (info.st_size == 0) return absl::InvalidArgumentError(absl::StrCat(path, ": empty file"));
  const auto size = static_cast<size_t>(info.st_size);
  void* mapping = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (mapping == MAP_FAILED) return absl::ErrnoToStatus(errno, absl::StrCat("cannot map ", path));
  MappedFile file;
  file.bytes_ = {static_cast<const char*>(mapping), size};
  return file;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

}  // namespace milepost::data
