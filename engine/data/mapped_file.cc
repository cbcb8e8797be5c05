#include "engine/data/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/regular_file.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace milepost::data {

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  auto opened = OpenRegularFile(path);
  if (!opened.ok()) return Annotate(opened.status(), "the data file");
  const UniqueFd fd = *std::move(opened);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot stat ", path));
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
