#include "coordinator/store/direct_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/error_details.h"
#include "common/status_macros.h"

namespace milepost::coordinator {
namespace {

constexpr size_t kAlignment = 4096;  // of memory, places and sizes: what all disks accept
constexpr mode_t kMode = 0644;       // as RocksDB's own files; the folder is its owner's alone

absl::Status DiskError(int error, absl::string_view path) {
  const absl::Status status = absl::ErrnoToStatus(error, absl::StrCat("writing ", path));
  if (error != ENOSPC && error != EDQUOT) return absl::InternalError(status.message());
  return Refusal(v1::ERROR_REASON_DISK_FULL, "",
                 absl::StrCat(status.message(), "; free some space and try again"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DirectFile>> DirectFile::Create(const std::string& path,
                                                               std::atomic<int64_t>* written) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  UniqueFd fd(open(path.c_str(), kFlags | O_DIRECT, kMode));
  const bool direct = fd.ok();
  if (!direct) fd.Reset(open(path.c_str(), kFlags, kMode));
  if (!fd.ok()) return DiskError(errno, path);
  return std::unique_ptr<DirectFile>(new DirectFile(path, std::move(fd), direct, written));
}

DirectFile::DirectFile(std::string path, UniqueFd fd, bool direct, std::atomic<int64_t>* written)
    : path_(std::move(path)), fd_(std::move(fd)), written_(written), direct_(direct) {
  for (int i = 0; i < kBuffers; ++i) {
    Buffer buffer;
    buffer.memory.reset(static_cast<char*>(std::aligned_alloc(kAlignment, kBufferBytes)));
    MP_CHECK(buffer.memory != nullptr) << "there is no memory";
    empty_.push_back(std::move(buffer));
  }
  AwaitBuffer();
  thread_ = std::thread([this] { Run(); });
}

DirectFile::~DirectFile() { Close(); }

void DirectFile::Append(absl::string_view bytes) {
  size_ += bytes.size();
  while (!bytes.empty()) {
    const size_t count = std::min(bytes.size(), kBufferBytes - filling_.filled);
    std::memcpy(filling_.memory.get() + filling_.filled, bytes.data(), count);
    filling_.filled += count;
    bytes.remove_prefix(count);
    if (filling_.filled < kBufferBytes) return;
    Submit();
    AwaitBuffer();
  }
}

absl::Status DirectFile::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

absl::Status DirectFile::Finish() {
  if (filling_.filled > 0) Submit();
  Close();
  MP_RETURN_IF_ERROR(status());
  return SyncAll();
}

void DirectFile::Submit() {
  absl::MutexLock lock(&mutex_);
  full_.push_back(std::move(filling_));
}

void DirectFile::AwaitBuffer() {
  const auto some = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !empty_.empty(); };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&some));
  filling_ = std::move(empty_.back());
  empty_.pop_back();
}

void DirectFile::Close() {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }
  thread_.join();
}

void DirectFile::Run() {
  const auto work = [this]()
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closed_ || !full_.empty(); };
  absl::MutexLock lock(&mutex_);
  while (true) {
    mutex_.Await(absl::Condition(&work));
    if (full_.empty()) return;
    Buffer buffer = std::move(full_.front());
    full_.pop_front();
    absl::Status status = status_;
    mutex_.Unlock();
    if (status.ok()) status = Write(buffer);
    mutex_.Lock();
    status_ = status;
    buffer.filled = 0;
    empty_.push_back(std::move(buffer));
  }
}

// The file's last bytes are written as a whole block too; what is too much is cut off again.
absl::Status DirectFile::Write(const Buffer& buffer) {
  size_t size = buffer.filled;
  if (direct_) {
    size = (size + kAlignment - 1) / kAlignment * kAlignment;
    std::memset(buffer.memory.get() + buffer.filled, 0, size - buffer.filled);
  }
  MP_RETURN_IF_ERROR(WriteAt(buffer.memory.get(), size, offset_));
  // The kernel begins to write back while more comes, so that the sync finds little left to do.
  if (!direct_) {
    sync_file_range(fd_.get(), static_cast<off64_t>(offset_), static_cast<off64_t>(size),
                    SYNC_FILE_RANGE_WRITE);
  }
  offset_ += buffer.filled;
  *written_ += static_cast<int64_t>(buffer.filled);
  return absl::OkStatus();
}

absl::Status DirectFile::WriteAt(const char* data, size_t size, uint64_t offset) {
  while (size > 0) {
    const ssize_t wrote = pwrite(fd_.get(), data, size, static_cast<off_t>(offset));
    const bool refused = wrote < 0 && errno == EINVAL && direct_;
    // Either the file system opens such files and does not write them, or a disk that is almost
    // full took part of a block.
    if (refused && fcntl(fd_.get(), F_SETFL, 0) == 0) {
      direct_ = false;
    } else if (wrote < 0 && errno != EINTR) {
      return DiskError(errno, path_);
    } else if (wrote == 0) {
      return DiskError(ENOSPC, path_);
    } else if (wrote > 0) {
      data += wrote;
      size -= static_cast<size_t>(wrote);
      offset += static_cast<uint64_t>(wrote);
    }
  }
  return absl::OkStatus();
}

absl::Status DirectFile::SyncAll() {
  if (ftruncate(fd_.get(), static_cast<off_t>(size_)) == 0 && fdatasync(fd_.get()) == 0) {
    return absl::OkStatus();
  }
  return DiskError(errno, path_);
}

}  // namespace milepost::coordinator
