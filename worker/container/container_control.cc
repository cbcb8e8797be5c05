#include "worker/container/container_control.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/regular_file.h"

namespace milepost::worker {
namespace {

constexpr size_t kMostReportBytes = 4096;
constexpr mode_t kOwnFiles = 0600, kOwnControlFolder = 0700;

}  // namespace

CommandEnd ParseReport(absl::string_view report) {
  CommandEnd end;
  for (absl::string_view line : absl::StrSplit(report, '\n')) {
    int number = 0;
    const auto is = [&](absl::string_view word) {
      absl::string_view rest = line;
      return absl::ConsumePrefix(&rest, word) && absl::SimpleAtoi(rest, &number) && number >= 0;
    };
    if (line == "started") {
      end.kind = CommandEnd::kStarted;
    } else if (is("cannot start ")) {
      end = {.kind = CommandEnd::kCannotStart, .error = number};
    } else if (is("exit ")) {
      end = {.kind = CommandEnd::kEnded, .result = {.exit_code = number}};
    } else if (is("signal ")) {
      end = {.kind = CommandEnd::kEnded, .result = {.signal = number}};
    }
  }
  return end;
}

absl::StatusOr<ContainerControl> ContainerControl::Make(const std::string& scratch) {
  std::string folder = absl::StrCat(scratch, "/container");
  const std::string orders = absl::StrCat(folder, "/orders");
  if (mkdir(folder.c_str(), kOwnControlFolder) != 0 || mkfifo(orders.c_str(), kOwnFiles) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", orders));
  }
  // To read as well, so that it need not wait for a reader.
  UniqueFd fd(open(orders.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!fd.ok()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", orders));
  return ContainerControl(std::move(folder), std::move(fd));
}

pid_t ContainerControl::pid() const {
  const auto text = ReadRegularFile(pid_file(), kMostReportBytes);
  pid_t pid = 0;
  const bool good = text.ok() && absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &pid);
  return good && pid > 1 ? pid : 0;
}

void ContainerControl::Signal(int signal) const {
  const auto number = static_cast<unsigned char>(signal);
  // A full FIFO has thousands of them, which nobody has read.
  (void)!write(orders_.get(), &number, 1);
}

CommandEnd ContainerControl::End() const {
  return ParseReport(ReadRegularFile(folder_ + "/report", kMostReportBytes).value_or(""));
}

}  // namespace milepost::worker
