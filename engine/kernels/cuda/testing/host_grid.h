// Runs a kernel of context.h on the host. The threads of a block are fibers, run one at a time:
// from barrier to barrier, in ascending order or in one drawn from a seed; blocks likewise. What
// comes back says what a device would not:
//
//   MP_RETURN_IF_ERROR(RunOnHost(ScaleKernel<float>{x.data(), n, 2}, {.x = CeilDiv(n, 256)}));
//   RunOnHost(kernel, grid, {.seed = 7})    // another legal order
//
// Errors (FailedPrecondition, with block, thread and place): a barrier or shuffle that not all
// threads reach, or at different places; an access out of bounds of every HostArray or shared
// array, or misaligned; two unordered accesses of one element, one of them a write. Sanitizers are
// told of the fibers. Tests only; not thread-safe.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_TESTING_HOST_GRID_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_TESTING_HOST_GRID_H_

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <source_location>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/kernels/cuda/testing/host_memory.h"
#include "engine/kernels/cuda/testing/host_tiles.h"

namespace milepost::kernels::cuda {

// A place in a kernel.
#ifdef __cpp_lib_source_location
using KernelPlace = std::source_location;
#else  // Clang 14
class KernelPlace {
 public:
  static constexpr KernelPlace current(const char* file = __builtin_FILE(),
                                       int line = __builtin_LINE(),
                                       int column = __builtin_COLUMN()) {
    KernelPlace place;
    place.file_ = file;
    place.line_ = line;
    place.column_ = column;
    return place;
  }
  constexpr const char* file_name() const { return file_; }
  constexpr int line() const { return line_; }
  constexpr int column() const { return column_; }

 private:
  const char* file_ = "";
  int line_ = 0;
  int column_ = 0;
};
#endif

class HostBlock;

// Elements of a block's shared memory.
template <typename T>
class HostSharedArray;

class HostContext {
 public:
  using Place = KernelPlace;

  HostContext(HostBlock& owner, int thread) : owner_(owner), thread_(thread) {}

  int thread() const { return thread_; }
  int lane() const { return thread_ % kWarp; }
  int warp() const { return thread_ / kWarp; }
  int64_t block() const;
  int64_t block_y() const;
  int64_t blocks() const;

  template <typename V>
  V Load(const V* p, Place place = Place::current()) const {
    Access(p, sizeof(V), alignof(V), /*write=*/false, place);
    V value;
    std::memcpy(&value, p, sizeof(V));
    return value;
  }
  template <typename V>
  void Store(V* p, const V& value, Place place = Place::current()) const {
    Access(p, sizeof(V), alignof(V), /*write=*/true, place);
    std::memcpy(static_cast<void*>(p), &value, sizeof(V));
  }

  void Sync(Place place = Place::current()) const;
  void SyncWarp(Place place = Place::current()) const;
  template <typename V>
  V ShuffleXor(V value, int mask, Place place = Place::current()) const {
    return Exchange(value, lane() ^ mask, place);
  }
  template <typename V>
  V Shuffle(V value, int lane, Place place = Place::current()) const {
    return Exchange(value, lane, place);
  }
  template <typename T>
  void MultiplyTiles(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&sums)[4],
                     Place place = Place::current()) const {
    AddTiles<T>(ExchangeTiles({a[0], a[1], a[2], a[3], b[0], b[1]}, place), lane(), sums);
  }

  template <typename T, int N, int kTag>
  HostSharedArray<T> Shared() const {
    return HostSharedArray<T>(*this, SharedBytes(kTag, N * sizeof(T), sizeof(T)), N);
  }
  template <typename T>
  HostSharedArray<T> DynamicShared() const {
    int64_t bytes = 0;
    char* data = DynamicSharedBytes(sizeof(T), &bytes);
    return HostSharedArray<T>(*this, data, bytes / static_cast<int64_t>(sizeof(T)));
  }

  // Ends the launch with this error; does not come back.
  [[noreturn]] void Fail(std::string what, Place place) const;
  void Access(const void* p, size_t bytes, size_t alignment, bool write, Place place) const;

 private:
  template <typename V>
  V Exchange(V value, int from, Place place) const {
    static_assert(sizeof(V) <= 8 && std::is_trivially_copyable_v<V>);
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(V));
    bits = ExchangeBits(bits, from, place);
    std::memcpy(&value, &bits, sizeof(V));
    return value;
  }
  uint64_t ExchangeBits(uint64_t bits, int from, Place place) const;
  const TileWords& ExchangeTiles(const LaneWords& own, Place place) const;
  char* SharedBytes(int tag, size_t bytes, size_t granule) const;
  char* DynamicSharedBytes(size_t granule, int64_t* bytes) const;

  HostBlock& owner_;
  int thread_;
};

template <typename T>
class HostSharedArray {
 public:
  using Place = KernelPlace;
  HostSharedArray(const HostContext& context, char* data, int64_t n)
      : context_(context), data_(reinterpret_cast<T*>(data)), n_(n) {}

  T Get(int64_t i, Place place = Place::current()) const {
    Check(i, place);
    return context_.Load(data_ + i, place);
  }
  void Set(int64_t i, T value, Place place = Place::current()) const {
    Check(i, place);
    context_.Store(data_ + i, value, place);
  }

 private:
  void Check(int64_t i, Place place) const {
    if (i >= 0 && i < n_) return;
    context_.Fail(
        "shared memory out of bounds: element " + std::to_string(i) + " of " + std::to_string(n_),
        place);
  }
  const HostContext& context_;
  T* data_;
  int64_t n_;
};

struct HostOrder {
  uint64_t seed = 0;  // 0: blocks and threads in ascending order
};

// The untyped part: `body` is the kernel.
absl::Status RunBlocks(int threads, const Grid& grid, const HostOrder& order,
                       const std::function<void(HostContext&)>& body);

template <typename Kernel>
absl::Status RunOnHost(const Kernel& kernel, const Grid& grid, const HostOrder& order = {}) {
  static_assert(Kernel::kThreads % kWarp == 0 && Kernel::kThreads <= 1024);
  return RunBlocks(Kernel::kThreads, grid, order, [&](HostContext& c) { kernel(c); });
}

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_TESTING_HOST_GRID_H_
