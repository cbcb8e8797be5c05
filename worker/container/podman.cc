#include "worker/container/podman.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "common/unique_fd.h"
#include "common/utf8.h"
#include "worker/container/podman_run.h"

namespace milepost::worker {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostSaidBytes = 4 << 20;
constexpr size_t kMostErrorBytes = 512;
constexpr absl::Duration kBetweenGlimpses = absl::Milliseconds(20);

// In memory, so that nobody has to read while podman writes.
absl::StatusOr<UniqueFd> MemoryFile() {
  UniqueFd fd(memfd_create("podman", MFD_CLOEXEC));
  if (fd.ok()) return fd;
  return absl::InternalError(
      absl::StrCat("memfd: ", std::string(absl::ErrnoToStatus(errno, "cannot make").message())));
}

std::string TextIn(const UniqueFd& file) {
  std::string text(kMostSaidBytes, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got =
        pread(file.get(), text.data() + size, text.size() - size, static_cast<off_t>(size));
    if (got <= 0) break;
    size += static_cast<size_t>(got);
  }
  text.resize(size);
  return text;
}

absl::StatusOr<ExitResult> EndOf(Subprocess& podman, const PodmanCall& call,
                                 const std::string& what) {
  const absl::Time deadline = SteadyNow() + call.patience;
  while (true) {
    const absl::StatusOr<ExitResult> end = podman.Wait(absl::Now() + kBetweenGlimpses);
    if (end.ok()) return *end;
    if (call.give_up()) return absl::CancelledError("told to stop while podman worked");
    if (SteadyNow() >= deadline) {
      return absl::UnavailableError(absl::StrCat("`podman ", what, "` did not end within ",
                                                 absl::FormatDuration(call.patience)));
    }
  }
}

}  // namespace

absl::StatusOr<std::string> FindPodman() {
  const char* path = std::getenv("PATH");
  for (const absl::string_view folder :
       absl::StrSplit(path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path, ':')) {
    std::string program = absl::StrCat(folder, "/podman");
    std::error_code error;
    if (fs::is_regular_file(program, error) && access(program.c_str(), X_OK) == 0) return program;
  }
  return absl::FailedPreconditionError(
      "script.container: this host has no podman in the PATH of its worker: install it "
      "(docs/operate/workers.md), or name workers that have it by resources.pool");
}

absl::StatusOr<PodmanAnswer> AskPodman(const std::vector<std::string>& arguments,
                                       const PodmanCall& call) {
  SpawnOptions spawn;
  MP_ASSIGN_OR_RETURN(spawn.program, FindPodman());
  MP_ASSIGN_OR_RETURN(const UniqueFd out, MemoryFile());
  MP_ASSIGN_OR_RETURN(const UniqueFd err, MemoryFile());
  spawn.argv = PodmanArguments(arguments);
  spawn.out = Redirect::Fd(out.get());
  spawn.err = Redirect::Fd(err.get());
  spawn.end_group = true;  // it starts others
  MP_ASSIGN_OR_RETURN(Subprocess podman, Subprocess::Spawn(std::move(spawn)));
  const absl::StatusOr<ExitResult> end = EndOf(podman, call, arguments[0]);
  if (!end.ok()) {  // it may hang in the kernel
    Subprocess::LeaveBehind(std::move(podman));
    return end.status();
  }
  return PodmanAnswer{*end, TextIn(out), TextIn(err)};
}

std::string PodmanError(absl::string_view err) {
  err = absl::StripTrailingAsciiWhitespace(err);
  const size_t newline = err.rfind('\n');
  if (newline != absl::string_view::npos) err.remove_prefix(newline + 1);
  absl::ConsumePrefix(&err, "Error: ");
  return CutUtf8(std::string(absl::StripAsciiWhitespace(err)), kMostErrorBytes);
}

}  // namespace milepost::worker
