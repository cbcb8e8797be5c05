#include "engine/runtime/gpu/device/host_mirror.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace milepost::runtime {
namespace {

constexpr int64_t kPage = 4096;

}  // namespace

absl::StatusOr<HostMirror> HostMirror::Make(int64_t bytes) {
  const int64_t whole = std::max<int64_t>((bytes + kPage - 1) / kPage * kPage, kPage);
  void* data = mmap(nullptr, static_cast<size_t>(whole), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no host addresses for ", bytes, " bytes of a device: ", strerror(errno)));
  }
  return HostMirror(static_cast<char*>(data), whole);
}

HostMirror::HostMirror(HostMirror&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

HostMirror& HostMirror::operator=(HostMirror&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

HostMirror::~HostMirror() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
}

void HostMirror::Clear() { madvise(data_, static_cast<size_t>(bytes_), MADV_DONTNEED); }

absl::Status HostMirror::Pin(Device& device, std::vector<Range> ranges) const {
  for (Range& range : ranges) {
    range.begin = range.begin / kPage * kPage;
    range.end = (range.end + kPage - 1) / kPage * kPage;
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::vector<Range> apart;
  for (const Range& range : ranges) {
    if (!apart.empty() && range.begin <= apart.back().end) {
      apart.back().end = std::max(apart.back().end, range.end);
    } else {
      apart.push_back(range);
    }
  }
  for (const Range& range : apart) {
    MP_RETURN_IF_ERROR(device.Pin(data_ + range.begin, range.end - range.begin));
  }
  return absl::OkStatus();
}

}  // namespace milepost::runtime
