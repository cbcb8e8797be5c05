// A file's bytes in memory, read-only. They are loaded as they are touched.
//
//   MP_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
//   absl::string_view bytes = file.bytes();   // valid as long as `file`
//
// Movable; thread-safe. A file that is cut while it is mapped raises SIGBUS in reads.
#ifndef MILEPOST_ENGINE_DATA_MAPPED_FILE_H_
#define MILEPOST_ENGINE_DATA_MAPPED_FILE_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace milepost::data {

class MappedFile {
 public:
  // NOT_FOUND or PERMISSION_DENIED: the file cannot be opened. INVALID_ARGUMENT: it is empty or not
  // a regular file.
  static absl::StatusOr<MappedFile> Open(const std::string& path);
  MappedFile() = default;  // no bytes
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  absl::string_view bytes() const { return bytes_; }

 private:
  absl::string_view bytes_;
};

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_MAPPED_FILE_H_
