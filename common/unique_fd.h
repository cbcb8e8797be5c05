// Owns one file descriptor and closes it.
//
//   UniqueFd fd(open(path, O_RDONLY | O_CLOEXEC));
//   if (!fd.ok()) return absl::ErrnoToStatus(errno, path);
//
// Movable, not copyable; not thread-safe.
#ifndef MILEPOST_COMMON_UNIQUE_FD_H_
#define MILEPOST_COMMON_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace milepost {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) Reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { Reset(); }

  bool ok() const { return fd_ >= 0; }
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset(int fd = -1) {
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

}  // namespace milepost

#endif  // MILEPOST_COMMON_UNIQUE_FD_H_
