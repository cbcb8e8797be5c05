#include "tests/e2e/stepped_clock.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/unique_fd.h"

#ifndef MILEPOST_CLOCK_SHIM
#define MILEPOST_CLOCK_SHIM ""
#endif

namespace milepost::e2e {

SteppedClocks::SteppedClocks(std::string folder) : folder_(std::move(folder)) {
  std::filesystem::create_directories(folder_);
}

std::string SteppedClocks::Unavailable() {
  if (std::string(MILEPOST_CLOCK_SHIM).empty()) {
    return "a library is preloaded for them, which does not go with a sanitizer";
  }
  return "";
}

std::vector<std::pair<std::string, std::string>> SteppedClocks::Env(absl::Duration begin) const {
  return {{"LD_PRELOAD", MILEPOST_CLOCK_SHIM},
          {"MILEPOST_CLOCK_FOLDER", folder_},
          {"MILEPOST_CLOCK_OFFSET", absl::StrCat(absl::ToInt64Nanoseconds(begin))}};
}

bool SteppedClocks::Step(int pid, absl::Duration offset) const {
  const UniqueFd file(open(absl::StrCat(folder_, "/", pid).c_str(), O_WRONLY | O_CLOEXEC));
  const int64_t nanos = absl::ToInt64Nanoseconds(offset);
  return file.ok() && pwrite(file.get(), &nanos, sizeof nanos, 0) == sizeof nanos;
}

}  // namespace milepost::e2e
