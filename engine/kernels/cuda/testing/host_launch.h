// Launch of the *.cu files where they are compiled as C++ (engine_kernels_cuda_on_host): kernels
// run at once, on the calling thread, whatever the stream. Where host_grid.h checks every access,
// this is fast: memory is not looked after, and threads that never wait share one fiber.
//
// Errors (INTERNAL, with kernel, block and thread) are those that a device has too: a grid or
// shared memory that is too large, a misaligned access, a barrier or shuffle that not all threads
// reach. Any number of threads may launch at once. Tests only.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_TESTING_HOST_LAUNCH_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_TESTING_HOST_LAUNCH_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "absl/status/status.h"
#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/kernels/cuda/testing/host_tiles.h"

namespace milepost::kernels::cuda {

class HostBlocks;
class LaunchContext;

template <typename T>
class LaunchedArray {
 public:
  LaunchedArray(const LaunchContext& context, char* data, int64_t n)
      : context_(context), data_(reinterpret_cast<T*>(data)), n_(n) {}
  inline T Get(int64_t i) const;
  inline void Set(int64_t i, T value) const;

 private:
  const LaunchContext& context_;
  T* data_;
  int64_t n_;
};

// The context of context.h.
class LaunchContext {
 public:
  LaunchContext(HostBlocks* owner, const Grid* grid, int thread)
      : owner_(owner), grid_(grid), thread_(thread) {}

  int thread() const { return thread_; }
  int lane() const { return thread_ % kWarp; }
  int warp() const { return thread_ / kWarp; }
  int64_t block() const { return block_; }
  int64_t block_y() const { return block_y_; }
  int64_t blocks() const { return grid_->x; }

  template <typename V>
  V Load(const V* p) const {
    CheckAlignment(p, alignof(V));
    V value;
    std::memcpy(&value, p, sizeof(V));
    return value;
  }
  template <typename V>
  void Store(V* p, const V& value) const {
    CheckAlignment(p, alignof(V));
    std::memcpy(static_cast<void*>(p), &value, sizeof(V));
  }

  void Sync() const;
  void SyncWarp() const;
  template <typename V>
  V ShuffleXor(V value, int mask) const {
    return Exchange(value, lane() ^ mask);
  }
  template <typename V>
  V Shuffle(V value, int lane) const {
    return Exchange(value, lane);
  }
  template <typename T>
  void MultiplyTiles(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&sums)[4]) const {
    AddTiles<T>(ExchangeTiles({a[0], a[1], a[2], a[3], b[0], b[1]}), lane(), sums);
  }

  template <typename T, int N, int kTag>
  LaunchedArray<T> Shared() const {
    return LaunchedArray<T>(*this, SharedBytes(kTag, N * sizeof(T)), N);
  }
  template <typename T>
  LaunchedArray<T> DynamicShared() const {
    const auto bytes = static_cast<size_t>(grid_->shared_bytes);
    return LaunchedArray<T>(*this, SharedBytes(kDynamicTag, bytes), bytes / sizeof(T));
  }

  // Ends the launch with this error; does not come back. `what` is a literal.
  [[noreturn]] void Fail(const char* what) const;

 private:
  friend class HostBlocks;
  static constexpr int kDynamicTag = -1;

  void CheckAlignment(const void* p, size_t alignment) const {
    if (reinterpret_cast<uintptr_t>(p) % alignment != 0) Fail("a misaligned access");
  }
  template <typename V>
  V Exchange(V value, int from) const {
    static_assert(sizeof(V) <= 8 && std::is_trivially_copyable_v<V>);
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(V));
    bits = ExchangeBits(bits, from);
    std::memcpy(&value, &bits, sizeof(V));
    return value;
  }
  uint64_t ExchangeBits(uint64_t bits, int from) const;
  const TileWords& ExchangeTiles(const LaneWords& own) const;
  char* SharedBytes(int tag, size_t bytes) const;

  HostBlocks* owner_;
  const Grid* grid_;
  int thread_;
  int64_t block_ = 0;
  int64_t block_y_ = 0;
};

template <typename T>
T LaunchedArray<T>::Get(int64_t i) const {
  if (i < 0 || i >= n_) context_.Fail("shared memory out of bounds");
  return context_.Load(data_ + i);
}
template <typename T>
void LaunchedArray<T>::Set(int64_t i, T value) const {
  if (i < 0 || i >= n_) context_.Fail("shared memory out of bounds");
  context_.Store(data_ + i, value);
}

// The untyped part.
using HostBody = void (*)(const void* kernel, LaunchContext& context);
absl::Status LaunchOnHost(const char* name, int threads, const Grid& grid, const void* kernel,
                          HostBody body);

template <typename Kernel>
absl::Status Launch(const Kernel& kernel, const Grid& grid, cudaStream_t, const char* name) {
  static_assert(Kernel::kThreads % kWarp == 0 && Kernel::kThreads <= 1024);
  return LaunchOnHost(name, Kernel::kThreads, grid, &kernel,
                      [](const void* k, LaunchContext& c) { (*static_cast<const Kernel*>(k))(c); });
}

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_TESTING_HOST_LAUNCH_H_
