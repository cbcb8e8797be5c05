#include "engine/data/npy.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "engine/data/npy_header.h"

namespace milepost::data {
namespace {

constexpr size_t kWriteBytes = 1 << 20;

absl::Status WriteAll(int fd, const std::string& path, const char* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t written = write(fd, data, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
    data += written;
    bytes -= written;
  }
  return absl::OkStatus();
}

// So that a rename in the folder survives a power cut.
absl::Status SyncFolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", folder));
  const int result = fsync(fd);
  const int error = errno;
  close(fd);
  if (result != 0) return absl::ErrnoToStatus(error, absl::StrCat("cannot sync ", folder));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<NpyWriter>> NpyWriter::Create(const std::string& path,
                                                             TokenType type) {
  std::unique_ptr<NpyWriter> writer(new NpyWriter);
  writer->path_ = path;
  writer->partial_path_ = absl::StrCat(path, ".partial-", getpid());
  writer->type_ = type;
  writer->fd_ = open(writer->partial_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (writer->fd_ < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot create ", writer->partial_path_));
  }
  writer->buffer_.reserve(kWriteBytes + sizeof(uint32_t));
  const std::string header = FormatNpyHeader(type, 0);
  writer->buffer_.assign(header.begin(), header.end());
  return writer;
}

NpyWriter::~NpyWriter() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(partial_path_.c_str());
}

absl::Status NpyWriter::Append(absl::Span<const uint32_t> tokens) {
  MP_CHECK(fd_ >= 0) << "Append after Finish";
  const int64_t width = Bytes(type_);
  const uint64_t limit = uint64_t{1} << (8 * width);
  for (const uint32_t token : tokens) {
    if (token >= limit) {
      return absl::InvalidArgumentError(absl::StrCat("token id ", token, " does not fit in ",
                                                     Name(type_), "; write ", path_,
                                                     " with a wider type"));
    }
    buffer_.resize(buffer_.size() + width);
    std::memcpy(buffer_.data() + buffer_.size() - width, &token, width);  // little-endian host
    ++size_;
    if (buffer_.size() >= kWriteBytes) MP_RETURN_IF_ERROR(Flush());
  }
  return absl::OkStatus();
}

absl::Status NpyWriter::Flush() {
  MP_RETURN_IF_ERROR(WriteAll(fd_, partial_path_, buffer_.data(), buffer_.size()));
  buffer_.clear();
  return absl::OkStatus();
}

absl::Status NpyWriter::Finish() {
  MP_CHECK(fd_ >= 0) << "Finish called twice";
  MP_RETURN_IF_ERROR(Flush());
  const std::string header = FormatNpyHeader(type_, size_);
  if (pwrite(fd_, header.data(), header.size(), 0) != static_cast<ssize_t>(header.size()) ||
      fsync(fd_) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", partial_path_));
  }
  if (rename(partial_path_.c_str(), path_.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot put ", path_, " into place"));
  }
  close(fd_);
  fd_ = -1;
  return SyncFolderOf(path_);
}

}  // namespace milepost::data
