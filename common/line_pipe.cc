#include "common/line_pipe.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/poll.h"

namespace milepost {
namespace {

// False: `ends` is readable, and nothing will come from `fd`.
bool MayCome(int fd, int ends) {
  pollfd fds[] = {{fd, POLLIN, 0}, {ends, POLLIN, 0}};  // a negative one is left out
  while (poll(fds, 2, -1) < 0 && errno == EINTR) {
  }
  return fds[0].revents != 0 || fds[1].revents == 0;
}

}  // namespace

absl::StatusOr<std::string> LineReader::Next() {
  size_t searched = 0;
  while (true) {
    const size_t end = read_.find('\n', searched);
    if (end != std::string::npos) {
      std::string line = read_.substr(0, end);
      read_.erase(0, end + 1);
      return line;
    }
    searched = read_.size();
    if (searched > most_bytes_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a line is longer than ", most_bytes_, " bytes"));
    }
    if (ends_ >= 0 && !MayCome(fd_.get(), ends_)) {
      return absl::OutOfRangeError("the other process has ended");
    }
    char part[16 << 10];
    const ssize_t got = read(fd_.get(), part, sizeof part);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, "cannot read a line");
    if (got == 0) return absl::OutOfRangeError("the other end is closed");
    read_.append(part, static_cast<size_t>(got));
  }
}

bool LineReader::Ready() const {
  return !read_.empty() || PollFd(fd_.get(), POLLIN, absl::InfinitePast());
}

absl::Status WriteLine(int fd, absl::string_view line) {
  const std::string text = absl::StrCat(line, "\n");
  absl::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t written = write(fd, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EPIPE) return absl::UnavailableError("nobody reads the pipe");
    if (written < 0) return absl::ErrnoToStatus(errno, "cannot write a line");
    rest.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace milepost
