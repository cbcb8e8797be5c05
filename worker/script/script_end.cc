#include "worker/script/script_end.h"

#include <csignal>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/exit_codes.h"
#include "worker/script/script_environment.h"

namespace milepost::worker {
namespace {

constexpr size_t kMostErrorFileBytes = 1 << 20;

}  // namespace

TrainerExit ExitOfScript(const ExitResult& end, bool out_of_memory, const std::string& cause) {
  if (end.success()) return {};
  if (end.signal == SIGKILL && out_of_memory) {
    return {kExitOutOfMemory, v1::FAILURE_CLASS_OUT_OF_MEMORY,
            "the script was killed by the kernel's out-of-memory killer"};
  }
  const std::string what = absl::StrCat("the script ended: ", end.ToString());
  // Not held against the host: a program can do it to itself.
  if (end.signal == SIGKILL || end.signal == SIGTERM) {
    return {kExitError, v1::FAILURE_CLASS_SCRIPT,
            absl::StrCat(what, ", not by Milepost: someone's kill, or the host ran out of memory")};
  }
  if (!cause.empty()) {
    return {kExitError, v1::FAILURE_CLASS_SCRIPT, absl::StrCat(what, ": ", cause)};
  }
  return {kExitError, v1::FAILURE_CLASS_SCRIPT, what, /*with_last_line=*/true};
}

std::string FirstCauseIn(const std::string& path) {
  std::ifstream file(path);
  std::string text(kMostErrorFileBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return FirstCause(text);
}

}  // namespace milepost::worker
