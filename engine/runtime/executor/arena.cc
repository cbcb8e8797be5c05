#include "engine/runtime/executor/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "common/host_memory.h"

namespace milepost::runtime {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

std::string Refusal(int64_t bytes, absl::string_view why) {
  return absl::StrFormat("the arena needs %d bytes (%.2f GiB), but %s", bytes,
                         static_cast<double>(bytes) / (int64_t{1} << 30), why);
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

absl::StatusOr<Arena> Arena::Allocate(int64_t bytes, absl::string_view advice) {
  absl::StatusOr<Arena> arena = Map(bytes);
  if (arena.ok()) return arena;
  return absl::Status(arena.status().code(), absl::StrCat(arena.status().message(), "; ", advice));
}

absl::StatusOr<Arena> Arena::Map(int64_t bytes) {
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
