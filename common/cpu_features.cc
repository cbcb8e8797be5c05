#include "common/cpu_features.h"

#include <algorithm>
#include <fstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace milepost {

bool HostMultipliesBf16(const std::string& root) {
  std::ifstream file(root + "/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!absl::StartsWith(line, "flags")) continue;
    const std::vector<absl::string_view> flags = absl::StrSplit(line, ' ');
    return std::find(flags.begin(), flags.end(), "avx512_bf16") != flags.end();
  }
  return false;
}

}  // namespace milepost
