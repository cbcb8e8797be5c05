// Memory that kernels may touch when they run on the host (host_grid.h): exact bounds, and who
// touched what, so that a race between threads of one launch is seen. Tests only; one thread.
//
//   HostArray<float> x(values);      // a copy
//   HostArray<bf16> y(n);            // poisoned: NaNs
//   ... a kernel with x.data(), y.data() ...
//   y.values()
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_TESTING_HOST_MEMORY_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_TESTING_HOST_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#if defined(MILEPOST_ON_DEVICE)
#include <cuda_runtime.h>

#include "common/check.h"
#endif

namespace milepost::kernels::cuda {

// Who an access belongs to. Two accesses of one location, one of them a write, are in order only
// where a barrier that both passed lies between them: of the block, or of their warp.
struct Accessor {
  uint64_t launch = 0;
  int64_t block = 0;
  int thread = 0;
  uint32_t block_epoch = 0;  // barriers of the block passed so far
  uint32_t warp_epoch = 0;   // those of the warp

  int warp() const { return thread / 32; }
};

// The last write of a location, and its reads since as far as two slots can tell.
class Marks {
 public:
  // Empty, or what it conflicts with: "thread 3 of block 0 wrote it".
  std::string Read(const Accessor& by);
  std::string Write(const Accessor& by);

 private:
  static bool Unordered(const Accessor& a, const Accessor& b);

  Accessor write_;
  Accessor reads_[2];  // the last one, and the last one unordered with it
};

// One range of memory that there is while the object lives; `granule` bytes share a mark.
class MemoryRange {
 public:
  MemoryRange(void* data, size_t bytes, size_t granule);
  ~MemoryRange();
  MemoryRange(const MemoryRange&) = delete;
  MemoryRange& operator=(const MemoryRange&) = delete;

  bool Holds(const void* p) const {
    return static_cast<const char*>(p) >= begin_ && static_cast<const char*>(p) < begin_ + bytes_;
  }
  // Empty, or what is wrong with the access.
  std::string Access(const void* p, size_t bytes, bool write, const Accessor& by);

 private:
  char* begin_;
  size_t bytes_;
  size_t granule_;
  std::vector<Marks> marks_;
};

// All ranges that there are at the moment.
class HostMemory {
 public:
  static HostMemory& Get();
  std::string Access(const void* p, size_t bytes, size_t alignment, bool write, const Accessor& by);

 private:
  friend class MemoryRange;
  std::vector<MemoryRange*> ranges_;  // the one found last is first
};

#if defined(MILEPOST_ON_DEVICE)
// Pinned: the device reads and writes it where it lies.
inline void* NewStorage(size_t bytes) {
  void* data = nullptr;
  MP_CHECK(cudaMallocHost(&data, bytes) == cudaSuccess) << bytes << " bytes of pinned memory";
  return data;
}
inline void DeleteStorage(void* data) { cudaFreeHost(data); }
#else
inline constexpr std::align_val_t kArrayAlignment{256};
inline void* NewStorage(size_t bytes) { return ::operator new(bytes, kArrayAlignment); }
inline void DeleteStorage(void* data) { ::operator delete(data, kArrayAlignment); }
#endif

// n elements on a boundary of 256 bytes, as the device's allocator gives them, `skip` elements
// after it; filled with 0xff, a NaN in every type, so that reading what nobody wrote shows.
template <typename T>
class HostArray {
 public:
  explicit HostArray(int64_t n, int64_t skip = 0) : n_(n), skip_(skip) {
    storage_ = static_cast<T*>(NewStorage((n + skip) * sizeof(T) + 1));
    std::memset(static_cast<void*>(storage_), 0xff, (n + skip) * sizeof(T));
    range_ = std::make_unique<MemoryRange>(data(), n * sizeof(T), sizeof(T));
  }
  explicit HostArray(const std::vector<T>& values, int64_t skip = 0)
      : HostArray(static_cast<int64_t>(values.size()), skip) {
    if (n_ > 0) std::memcpy(static_cast<void*>(data()), values.data(), n_ * sizeof(T));
  }
  ~HostArray() { DeleteStorage(storage_); }
  HostArray(const HostArray&) = delete;
  HostArray& operator=(const HostArray&) = delete;

  T* data() { return storage_ + skip_; }
  int64_t size() const { return n_; }
  std::vector<T> values() { return std::vector<T>(data(), data() + n_); }

 private:
  T* storage_;
  int64_t n_;
  int64_t skip_;
  std::unique_ptr<MemoryRange> range_;
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_TESTING_HOST_MEMORY_H_
