#include "engine/data/npy.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "engine/data/npy_header.h"

namespace milepost::data {
namespace {

constexpr size_t kWriteBytes = 1 << 20;

// Copies ids as int32 and returns the largest: one pass that vectorises, no branch per token.
template <typename T>
uint32_t CopyTokens(const char* source, absl::Span<int32_t> out) {
  uint32_t largest = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    T token;  // the file's tokens may lie at any offset
    std::memcpy(&token, source + i * sizeof(T), sizeof(T));
    out[i] = static_cast<int32_t>(token);
    largest = std::max<uint32_t>(largest, token);
  }
  return largest;
}

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

const char* Name(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
      return "uint8";
    case TokenType::kUint16:
      return "uint16";
    case TokenType::kUint32:
      return "uint32";
  }
  return "?";
}

absl::StatusOr<std::shared_ptr<const TokenFile>> TokenFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open the data file ", path));
  const absl::Cleanup close_file = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot stat ", path));
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  if (info.st_size == 0) return absl::InvalidArgumentError(absl::StrCat(path, ": empty file"));
  void* mapping = mmap(nullptr, info.st_size, PROT_READ, MAP_SHARED, fd, 0);
  if (mapping == MAP_FAILED) return absl::ErrnoToStatus(errno, absl::StrCat("cannot map ", path));
  std::shared_ptr<TokenFile> file(new TokenFile);
  file->path_ = path;
  file->mapping_ = mapping;
  file->mapping_bytes_ = info.st_size;

  const char* bytes = static_cast<const char*>(mapping);
  auto header = ParseNpyHeader({bytes, std::min<size_t>(info.st_size, kMaxNpyHeaderBytes)});
  if (!header.ok()) return Annotate(header.status(), path);
  const int64_t held = (info.st_size - header->data_offset) / Bytes(header->type);
  const int64_t rest = (info.st_size - header->data_offset) % Bytes(header->type);
  if (held != header->elements || rest != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, held < header->elements ? ": truncated" : ": longer than its header says", ": ",
        header->elements, " tokens in the header, ", held, rest == 0 ? "" : " and a part of one",
        " in the file"));
  }
  file->type_ = header->type;
  file->size_ = header->elements;
  file->tokens_ = bytes + header->data_offset;
  return file;
}

TokenFile::~TokenFile() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
}

absl::Status TokenFile::Read(int64_t begin, int64_t vocabulary, absl::Span<int32_t> out) const {
  const int64_t count = out.size();
  MP_CHECK(begin >= 0 && begin <= size_ - count) << begin << "+" << count << " of " << size_;
  const char* source = tokens_ + begin * Bytes(type_);
  uint32_t largest = 0;
  switch (type_) {
    case TokenType::kUint8:
      largest = CopyTokens<uint8_t>(source, out);
      break;
    case TokenType::kUint16:
      largest = CopyTokens<uint16_t>(source, out);
      break;
    case TokenType::kUint32:
      largest = CopyTokens<uint32_t>(source, out);
      break;
  }
  if (count == 0 || largest < vocabulary) return absl::OkStatus();
  const auto bad = std::find_if(out.begin(), out.end(), [&](int32_t token) {
    return static_cast<uint32_t>(token) >= static_cast<uint64_t>(vocabulary);
  });
  return absl::InvalidArgumentError(absl::StrCat(
      path_, ": token ", begin + (bad - out.begin()), " has id ", static_cast<uint32_t>(*bad),
      ", but the model's vocabulary is ", vocabulary,
      "; use the tokenizer that the vocabulary belongs to, or raise model.*.vocabulary"));
}

void TokenFile::WillNeed(int64_t begin, int64_t tokens) const {
  static const uintptr_t page = sysconf(_SC_PAGESIZE);
  begin = std::clamp<int64_t>(begin, 0, size_);
  tokens = std::clamp<int64_t>(tokens, 0, size_ - begin);
  if (tokens == 0) return;
  const uintptr_t from = reinterpret_cast<uintptr_t>(tokens_ + begin * Bytes(type_)) / page * page;
  const uintptr_t to = reinterpret_cast<uintptr_t>(tokens_ + (begin + tokens) * Bytes(type_));
  madvise(reinterpret_cast<void*>(from), to - from, MADV_WILLNEED);  // only a hint: it may fail
}

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
