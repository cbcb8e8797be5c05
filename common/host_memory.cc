#include "common/host_memory.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace milepost {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

std::string ReadSmallFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The number after `key` at the start of a line: "MemAvailable:  123 kB", "inactive_file 42".
std::optional<int64_t> Field(absl::string_view text, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, key)) continue;
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t value = 0;
    if (!words.empty() && absl::SimpleAtoi(words[0], &value)) return value;
  }
  return std::nullopt;
}

std::optional<int64_t> Number(const std::string& path) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(ReadSmallFile(path), &value)) return std::nullopt;  // "max" too
  return value;
}

enum class Part { kAll, kFree };

// Where /proc is not mounted. The kernel does not tell here how much of the file cache it would
// give back.
int64_t KernelsBytes(Part part) {
  struct sysinfo info = {};
  if (sysinfo(&info) != 0) return kUnknown;
  const uint64_t units = part == Part::kAll ? info.totalram : info.freeram + info.bufferram;
  return static_cast<int64_t>(units * info.mem_unit);
}

int64_t HostBytes(Part part, const std::string& root) {
  const std::optional<int64_t> kib = Field(ReadSmallFile(root + "/proc/meminfo"),
                                           part == Part::kAll ? "MemTotal:" : "MemAvailable:");
  return kib ? *kib * 1024 : KernelsBytes(part);
}

// File cache counts as used by the cgroup but the kernel gives it back before it kills.
int64_t PartOf(Part part, std::optional<int64_t> limit, std::optional<int64_t> used,
               std::optional<int64_t> reclaimable) {
  if (!limit || (part == Part::kFree && !used)) return kUnknown;
  if (part == Part::kAll) return *limit;
  return std::max<int64_t>(0, *limit - *used + reclaimable.value_or(0));
}

int64_t CgroupV2Bytes(Part part, const std::string& folder) {
  return PartOf(part, Number(folder + "/memory.max"), Number(folder + "/memory.current"),
                Field(ReadSmallFile(folder + "/memory.stat"), "inactive_file "));
}

int64_t CgroupV1Bytes(Part part, const std::string& folder) {
  return PartOf(part, Number(folder + "/memory.limit_in_bytes"),
                Number(folder + "/memory.usage_in_bytes"),
                Field(ReadSmallFile(folder + "/memory.stat"), "total_inactive_file "));
}

// The least of the cgroup `path` and of every one above it: each may hold the limit.
int64_t LeastUpwards(Part part, bool v2, const std::string& base, std::string path) {
  int64_t least = kUnknown;
  while (true) {
    least =
        std::min(least, v2 ? CgroupV2Bytes(part, base + path) : CgroupV1Bytes(part, base + path));
    if (path.empty()) return least;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

// The process's cgroup and every one above it. In a container the path of /proc/self/cgroup may not
// exist under the mount, whose root is then the container's own.
int64_t CgroupBytes(Part part, const std::string& root) {
  int64_t least = kUnknown;
  for (absl::string_view line :
       absl::StrSplit(ReadSmallFile(root + "/proc/self/cgroup"), '\n', absl::SkipEmpty())) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const bool v2 = parts[0] == "0" && parts[1].empty();
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    const bool v1 =
        std::find(controllers.begin(), controllers.end(), "memory") != controllers.end();
    if (!v2 && !v1) continue;
    const std::string base = root + (v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory");
    least = std::min(least, LeastUpwards(part, v2, base, parts[2] == "/" ? "" : parts[2]));
  }
  return least;
}

}  // namespace

int64_t AvailableMemoryBytes(const std::string& root) {
  return std::min(HostBytes(Part::kFree, root), CgroupBytes(Part::kFree, root));
}

int64_t MemoryLimitBytes(const std::string& root) {
  return std::min(HostBytes(Part::kAll, root), CgroupBytes(Part::kAll, root));
}

int64_t CgroupOomKills() {
  std::ifstream cgroup("/proc/self/cgroup");
  std::string line;
  while (std::getline(cgroup, line)) {
    if (!absl::StartsWith(line, "0::")) continue;
    std::ifstream events("/sys/fs/cgroup" + line.substr(3) + "/memory.events");
    std::string name;
    int64_t count = 0;
    while (events >> name >> count) {
      if (name == "oom_kill") return count;
    }
  }
  return 0;
}

}  // namespace milepost
