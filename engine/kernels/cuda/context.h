// What a kernel is written against, so that one text runs on the device and, in tests, on the host
// (testing/host_grid.h). A kernel is a plain struct of its arguments, called once per thread:
//
//   template <typename T>
//   struct ScaleKernel {
//     static constexpr int kThreads = 256;
//     T* x;
//     int64_t n;
//     float factor;
//     template <typename Context>
//     MP_DEVICE void operator()(Context& c) const {
//       const int64_t i = c.block() * kThreads + c.thread();
//       if (i < n) c.Store(x + i, Narrow<T>(factor * Widen(c.Load(x + i))));
//     }
//   };
//
// The context c has
//   c.thread(), c.lane(), c.warp(), c.block(), c.block_y(), c.blocks()   who runs
//   c.Load(p), c.Store(p, v)                 one access of a T or a Pack<T, N>; p is aligned to it
//   c.Sync()                                 all threads of the block, at the same place
//   c.ShuffleXor(v, mask), c.Shuffle(v, lane)   all 32 lanes of a warp; they synchronise it too
//   c.SyncWarp()                             orders accesses within a warp
//   c.template MultiplyTiles<T>(a, b, sums)  all 32 lanes: a warp's product on tensor cores, below
//   c.template Shared<T, N, kTag>()          N elements of the block, the same for the same tag
//   c.template DynamicShared<T>()            the launch's shared bytes, as elements of T
// Shared memory comes as an array with Get(i) and Set(i, value). Everything else in memory goes
// through Load and Store: the host's context checks bounds, alignment and races there. Threads
// per block are a multiple of 32. A kernel that has kBlocks says how many blocks a multiprocessor
// should have at once.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_CONTEXT_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_CONTEXT_H_

#include <cmath>
#include <cstdint>

#include "engine/dtype/half.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define MP_DEVICE __device__ __forceinline__
#define MP_UNROLL _Pragma("unroll")
#define MP_BOTH __host__ __device__ __forceinline__
#else
#define MP_DEVICE inline
#define MP_UNROLL
#define MP_BOTH inline
#endif

namespace milepost::kernels::cuda {

inline constexpr int kWarp = 32;

// What one access moves: N elements, 16 bytes at most.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  static_assert(sizeof(T) * N <= 16);
  T v[N];
};

// Elements of T in a 128-bit access.
template <typename T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

template <typename T>
MP_DEVICE float Widen(T value) {
  return ToFloat(value);
}

// To nearest, ties to even.
template <typename T>
MP_DEVICE T Narrow(float value) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 4) {
    return value;
  } else if constexpr (kDTypeOf<T> == DType::kBf16) {
    return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
  } else {
    return {__half_as_ushort(__float2half_rn(value))};
  }
#else
  return FromFloat<T>(value);
#endif
}

template <int N>
struct Floats {
  float v[N];
};

// N elements from p on, widened; in accesses of 16 bytes at most.
template <int N, typename Context, typename T>
MP_DEVICE Floats<N> Read(Context& c, const T* p) {
  constexpr int kEach = N < kPack<T> ? N : kPack<T>;
  Floats<N> out;
  MP_UNROLL
  for (int i = 0; i < N; i += kEach) {
    const auto pack = c.Load(reinterpret_cast<const Pack<T, kEach>*>(p + i));
    MP_UNROLL
    for (int j = 0; j < kEach; ++j) out.v[i + j] = Widen(pack.v[j]);
  }
  return out;
}

template <int N, typename Context, typename T>
MP_DEVICE void Write(Context& c, T* p, const float (&values)[N]) {
  constexpr int kEach = N < kPack<T> ? N : kPack<T>;
  MP_UNROLL
  for (int i = 0; i < N; i += kEach) {
    Pack<T, kEach> pack;
    MP_UNROLL
    for (int j = 0; j < kEach; ++j) pack.v[j] = Narrow<T>(values[i + j]);
    c.Store(reinterpret_cast<Pack<T, kEach>*>(p + i), pack);
  }
}

// The same of the first `count` alone, where it is less than N; what is missing reads as 0.
template <int N, typename Context, typename T>
MP_DEVICE Floats<N> ReadUpTo(Context& c, const T* p, int64_t count) {
  if (count >= N) return Read<N>(c, p);
  Floats<N> out;
  MP_UNROLL
  for (int i = 0; i < N; ++i) out.v[i] = i < count ? Widen(c.Load(p + i)) : 0.0f;
  return out;
}

template <int N, typename Context, typename T>
MP_DEVICE void WriteUpTo(Context& c, T* p, const float (&values)[N], int64_t count) {
  if (count >= N) return Write<N>(c, p, values);
  MP_UNROLL
  for (int i = 0; i < N; ++i) {
    if (i < count) c.Store(p + i, Narrow<T>(values[i]));
  }
}

// MultiplyTiles<T>: sums += A B of 16-bit T, A [16, 16], B [16, 8], sums fp32 [16, 8]. A lane holds
// two elements a word, the first in its lower half; with g = lane / 4 and t = lane % 4
//   a[0], a[1]: A(g, 2t) and A(g + 8, 2t), each with the element behind it; a[2], a[3]: at 2t + 8
//   b[0], b[1]: B(2t, g) and B(2t + 8, g), each with the element below it
//   sums[0], sums[1]: (g, 2t) and (g, 2t + 1); sums[2], sums[3]: the same of row g + 8
// Source: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type". In which order it
// adds up is the device's.

// Sums and maxima over a warp: every lane gets the result, by the same tree on device and host.
template <typename Context, typename V>
MP_DEVICE V WarpSum(Context& c, V value) {
  MP_UNROLL
  for (int mask = kWarp / 2; mask > 0; mask /= 2) value += c.ShuffleXor(value, mask);
  return value;
}

template <typename Context>
MP_DEVICE float WarpMax(Context& c, float value) {
  MP_UNROLL
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    value = fmaxf(value, c.ShuffleXor(value, mask));
  }
  return value;
}

// Over a block of kThreads threads; every thread gets the result. Needs the block as a whole, and
// ends with a barrier: kTag's shared memory may be used again at once.
template <int kThreads, int kTag, typename Context, typename V>
MP_DEVICE V BlockSum(Context& c, V value) {
  value = WarpSum(c, value);
  if constexpr (kThreads > kWarp) {
    auto parts = c.template Shared<V, kThreads / kWarp, kTag>();
    if (c.lane() == 0) parts.Set(c.warp(), value);
    c.Sync();
    value = parts.Get(0);
    for (int i = 1; i < kThreads / kWarp; ++i) value += parts.Get(i);
    c.Sync();
  }
  return value;
}

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_CONTEXT_H_
