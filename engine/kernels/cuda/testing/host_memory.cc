#include "engine/kernels/cuda/testing/host_memory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace milepost::kernels::cuda {

bool Marks::Unordered(const Accessor& a, const Accessor& b) {
  if (a.launch != b.launch) return false;
  if (a.block != b.block) return true;
  if (a.thread == b.thread || a.block_epoch != b.block_epoch) return false;
  return a.warp() != b.warp() || a.warp_epoch == b.warp_epoch;
}

std::string Marks::Read(const Accessor& by) {
  if (Unordered(write_, by)) {
    return absl::StrCat("thread ", write_.thread, " of block ", write_.block, " wrote it");
  }
  if (Unordered(reads_[0], by)) reads_[1] = reads_[0];
  reads_[0] = by;
  return "";
}

std::string Marks::Write(const Accessor& by) {
  if (Unordered(write_, by)) {
    return absl::StrCat("thread ", write_.thread, " of block ", write_.block, " wrote it");
  }
  for (const Accessor& read : reads_) {
    if (!Unordered(read, by)) continue;
    return absl::StrCat("thread ", read.thread, " of block ", read.block, " read it");
  }
  write_ = by;
  return "";
}

MemoryRange::MemoryRange(void* data, size_t bytes, size_t granule)
    : begin_(static_cast<char*>(data)), bytes_(bytes), granule_(granule) {
  HostMemory::Get().ranges_.push_back(this);
}
MemoryRange::~MemoryRange() {
  auto& ranges = HostMemory::Get().ranges_;
  ranges.erase(std::find(ranges.begin(), ranges.end(), this));
}

std::string MemoryRange::Access(const void* p, size_t bytes, bool write, const Accessor& by) {
  const auto offset = static_cast<size_t>(static_cast<const char*>(p) - begin_);
  if (offset + bytes > bytes_) {
    return absl::StrCat("out of bounds: bytes ", offset, " to ", offset + bytes, " of ", bytes_);
  }
  if (marks_.empty()) marks_.resize((bytes_ + granule_ - 1) / granule_);
  for (size_t i = offset / granule_; i <= (offset + bytes - 1) / granule_; ++i) {
    const std::string conflict = write ? marks_[i].Write(by) : marks_[i].Read(by);
    if (!conflict.empty()) {
      return absl::StrCat("race on element ", i, ": ", conflict, " with no barrier between");
    }
  }
  return "";
}

HostMemory& HostMemory::Get() {
  static HostMemory memory;
  return memory;
}

std::string HostMemory::Access(const void* p, size_t bytes, size_t alignment, bool write,
                               const Accessor& by) {
  if (reinterpret_cast<uintptr_t>(p) % alignment != 0) {
    return absl::StrCat("misaligned: address ", reinterpret_cast<uintptr_t>(p) % 256,
                        " modulo 256 for an access of ", alignment, " bytes");
  }
  for (MemoryRange*& range : ranges_) {
    if (!range->Holds(p)) continue;
    std::swap(range, ranges_.front());
    return ranges_.front()->Access(p, bytes, write, by);
  }
  return "out of bounds: in no array";
}

}  // namespace milepost::kernels::cuda
