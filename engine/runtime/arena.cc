#include "engine/runtime/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace milepost::runtime {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
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

// The process's cgroup and every one above it: each may hold the limit. In a container the path of
// /proc/self/cgroup may not exist under the mount, whose root is then the container's own.
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
    std::string path = parts[2] == "/" ? "" : parts[2];
    while (true) {
      least =
          std::min(least, v2 ? CgroupV2Bytes(part, base + path) : CgroupV1Bytes(part, base + path));
      if (path.empty()) break;
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  }
  return least;
}

std::string Refusal(int64_t bytes, absl::string_view why) {
  return absl::StrFormat(
      "the training arena needs %d bytes (%.2f GiB), but %s; use a smaller micro batch or sequence "
      "length, or more ranks at ZeRO stage 1",
      bytes, static_cast<double>(bytes) / (int64_t{1} << 30), why);
}

absl::Status Refused(int64_t bytes, absl::string_view why) {
  return absl::ResourceExhaustedError(Refusal(bytes, why));
}

std::string Gib(int64_t bytes) {
  return absl::StrFormat("%d bytes (%.2f GiB)", bytes,
                         static_cast<double>(bytes) / (int64_t{1} << 30));
}

// Faults every page in now. Kernels before 5.14 do not know the call: pages then come as touched.
absl::Status Populate(char* data, int64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  while (madvise(data, static_cast<size_t>(bytes), MADV_POPULATE_WRITE) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno == EINVAL) break;
    return Refused(bytes, absl::StrFormat("the kernel did not back it with memory (%s)",
                                          std::strerror(errno)));
  }
#endif
  return absl::OkStatus();
}

}  // namespace

int64_t AvailableMemoryBytes(const std::string& root) {
  const std::optional<int64_t> kib = Field(ReadSmallFile(root + "/proc/meminfo"), "MemAvailable:");
  return std::min(kib ? *kib * 1024 : kUnknown, CgroupBytes(Part::kFree, root));
}

int64_t MemoryLimitBytes(const std::string& root) {
  const std::optional<int64_t> kib = Field(ReadSmallFile(root + "/proc/meminfo"), "MemTotal:");
  return std::min(kib ? *kib * 1024 : kUnknown, CgroupBytes(Part::kAll, root));
}

absl::StatusOr<Arena> Arena::Allocate(int64_t bytes) {
  if (const int64_t limit = MemoryLimitBytes(); bytes > limit) {
    return absl::FailedPreconditionError(
        Refusal(bytes, absl::StrCat("this host never has more than ", Gib(limit))));
  }
  if (const int64_t available = AvailableMemoryBytes(); bytes > available) {
    return Refused(bytes, absl::StrCat("only ", Gib(available), " are available on this host now"));
  }
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t mapped = std::max(page, (bytes + page - 1) / page * page);
  const int64_t slack = mapped >= kHugePage ? kHugePage : 0;  // to cut a 2 MiB boundary out of
  void* raw = mmap(nullptr, static_cast<size_t>(mapped + slack), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) {
    return Refused(bytes, absl::StrFormat("mmap failed (%s)", std::strerror(errno)));
  }
  char* data = static_cast<char*>(raw);
  if (slack > 0) {
    const auto address = reinterpret_cast<uintptr_t>(raw);
    const int64_t head = static_cast<int64_t>((kHugePage - address % kHugePage) % kHugePage);
    if (head > 0) munmap(data, static_cast<size_t>(head));
    data += head;
    if (slack > head) munmap(data + mapped, static_cast<size_t>(slack - head));
    madvise(data, static_cast<size_t>(mapped), MADV_HUGEPAGE);
  }
  Arena arena(data, bytes, mapped);
  if (absl::Status status = Populate(data, mapped); !status.ok()) return status;
  return arena;
}

Arena::Arena(Arena&& other) noexcept { *this = std::move(other); }

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

Arena::~Arena() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(mapped_));
}

}  // namespace milepost::runtime
