// The device's side of context.h, for *.cu files: DeviceContext, and Launch, which runs a kernel.
//
//   return Launch(ScaleKernel<T>{x, n, factor}, {.x = CeilDiv(n, 256)}, stream, "Scale");
//
// Asynchronous; the status is that of the launch. An empty grid launches nothing.
//
// With MILEPOST_KERNELS_ON_HOST *.cu files are compiled as C++, for tests, and Launch is that of
// testing/host_launch.h, which is included before this.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_LAUNCH_INL_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_LAUNCH_INL_H_
#if !defined(MILEPOST_KERNELS_ON_HOST)

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/stream.h"

namespace milepost::kernels::cuda {

template <typename T>
class DeviceArray {
 public:
  __device__ __forceinline__ explicit DeviceArray(T* data) : data_(data) {}
  __device__ __forceinline__ T Get(int i) const { return data_[i]; }
  __device__ __forceinline__ void Set(int i, T value) const { data_[i] = value; }

 private:
  T* data_;
};

class DeviceContext {
 public:
  __device__ __forceinline__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ __forceinline__ int lane() const { return thread() % kWarp; }
  __device__ __forceinline__ int warp() const { return thread() / kWarp; }
  __device__ __forceinline__ int64_t block() const { return blockIdx.x; }
  __device__ __forceinline__ int64_t block_y() const { return blockIdx.y; }
  __device__ __forceinline__ int64_t blocks() const { return gridDim.x; }

  template <typename V>
  __device__ __forceinline__ V Load(const V* p) const {
    if constexpr (sizeof(V) == 16 && std::is_class_v<V>) {
      const uint4 bits = *reinterpret_cast<const uint4*>(p);
      return *reinterpret_cast<const V*>(&bits);
    } else if constexpr (sizeof(V) == 8 && std::is_class_v<V>) {
      const uint2 bits = *reinterpret_cast<const uint2*>(p);
      return *reinterpret_cast<const V*>(&bits);
    } else {
      return *p;
    }
  }
  template <typename V>
  __device__ __forceinline__ void Store(V* p, const V& value) const {
    if constexpr (sizeof(V) == 16 && std::is_class_v<V>) {
      *reinterpret_cast<uint4*>(p) = *reinterpret_cast<const uint4*>(&value);
    } else if constexpr (sizeof(V) == 8 && std::is_class_v<V>) {
      *reinterpret_cast<uint2*>(p) = *reinterpret_cast<const uint2*>(&value);
    } else {
      *p = value;
    }
  }

  __device__ __forceinline__ void Sync() const { __syncthreads(); }
  __device__ __forceinline__ void SyncWarp() const { __syncwarp(); }
  template <typename V>
  __device__ __forceinline__ V ShuffleXor(V value, int mask) const {
    return __shfl_xor_sync(0xffffffffu, value, mask);
  }
  template <typename V>
  __device__ __forceinline__ V Shuffle(V value, int lane) const {
    return __shfl_sync(0xffffffffu, value, lane);
  }
  template <typename T>
  __device__ __forceinline__ void MultiplyTiles(const uint32_t (&a)[4], const uint32_t (&b)[2],
                                                float (&sums)[4]) const {
    if constexpr (kDTypeOf<T> == DType::kBf16) {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
          "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
      static_assert(kDTypeOf<T> == DType::kF16);
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
          "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
  }

  template <typename T, int N, int kTag>
  __device__ __forceinline__ DeviceArray<T> Shared() const {
    __shared__ T storage[N];
    return DeviceArray<T>(storage);
  }
  template <typename T>
  __device__ __forceinline__ DeviceArray<T> DynamicShared() const {
    extern __shared__ uint4 dynamic_storage[];
    return DeviceArray<T>(reinterpret_cast<T*>(dynamic_storage));
  }
};

template <typename Kernel>
__global__ void __launch_bounds__(Kernel::kThreads) Run(const __grid_constant__ Kernel kernel) {
  DeviceContext context;
  kernel(context);
}

// Of a kernel that says how many blocks a multiprocessor should have at once. Others do without the
// number: with it, 1 too, the compiler takes more registers.
template <typename Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, Kernel::kBlocks)
    RunBlocks(const __grid_constant__ Kernel kernel) {
  DeviceContext context;
  kernel(context);
}

template <typename Kernel>
constexpr int BlocksToldBy() {
  if constexpr (requires { Kernel::kBlocks; }) return Kernel::kBlocks;
  return 0;
}

template <typename Kernel>
constexpr auto EntryOf() {
  if constexpr (BlocksToldBy<Kernel>() > 0) {
    return &RunBlocks<Kernel>;
  } else {
    return &Run<Kernel>;
  }
}

// "kernel NAME of X x Y blocks: ..."; out of line, in launch.cu.
absl::Status LaunchError(const char* name, const Grid& grid, cudaError_t error);

template <typename Kernel>
absl::Status Launch(const Kernel& kernel, const Grid& grid, cudaStream_t stream, const char* name) {
  static_assert(Kernel::kThreads % kWarp == 0);
  if (grid.x == 0 || grid.y == 0) return absl::OkStatus();
  constexpr int64_t kDefaultShared = 48 << 10;
  if (grid.shared_bytes > kDefaultShared) {
    const cudaError_t allowed =
        cudaFuncSetAttribute(EntryOf<Kernel>(), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(grid.shared_bytes));
    if (allowed != cudaSuccess) return LaunchError(name, grid, allowed);
  }
  const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y));
  EntryOf<Kernel>()<<<blocks, Kernel::kThreads, static_cast<size_t>(grid.shared_bytes), stream>>>(
      kernel);
  const cudaError_t launched = cudaGetLastError();
  return launched == cudaSuccess ? absl::OkStatus() : LaunchError(name, grid, launched);
}

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_KERNELS_ON_HOST
#endif  // MILEPOST_ENGINE_KERNELS_CUDA_LAUNCH_INL_H_
