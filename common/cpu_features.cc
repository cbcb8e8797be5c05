#include "common/cpu_features.h"

#include <fstream>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace milepost {

Bf16Instructions HostMultipliesBf16(const std::string& root) {
  std::ifstream file(root + "/proc/cpuinfo");
  bool intel = false;
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, "vendor_id")) intel = absl::StrContains(line, "GenuineIntel");
    if (!absl::StartsWith(line, "flags")) continue;
    const absl::flat_hash_set<absl::string_view> flags = absl::StrSplit(line, ' ');
    // Of Intel's cores with AVX512_BF16, those from Golden Cove on have AVX512_FP16 too.
    const bool slow_dot = intel && flags.contains("avx512_fp16");
    return {.dot = flags.contains("avx512_bf16") && !slow_dot, .tiles = flags.contains("amx_bf16")};
  }
  return {};
}

}  // namespace milepost
