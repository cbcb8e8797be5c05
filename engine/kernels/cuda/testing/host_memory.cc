#include "engine/kernels/cuda/testing/host_memory.h"

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

std::shared_ptr<MemoryRange> HostMemory::Add(void* data, size_t bytes, size_t granule) {
  std::vector<std::weak_ptr<MemoryRange>> alive;
  for (auto& range : ranges_) {
    if (!range.expired()) alive.push_back(range);
  }
  ranges_ = std::move(alive);
  auto added = std::make_shared<MemoryRange>(data, bytes, granule);
  ranges_.push_back(added);
  return added;
}

std::string HostMemory::Access(const void* p, size_t bytes, size_t alignment, bool write,
                               const Accessor& by) {
  if (reinterpret_cast<uintptr_t>(p) % alignment != 0) {
    return absl::StrCat("misaligned: address ", reinterpret_cast<uintptr_t>(p) % 256,
                        " modulo 256 for an access of ", alignment, " bytes");
  }
  for (auto& weak : ranges_) {
    const auto range = weak.lock();
    if (range != nullptr && range->Holds(p)) return range->Access(p, bytes, write, by);
  }
  return "out of bounds: in no array";
}

}  // namespace milepost::kernels::cuda
