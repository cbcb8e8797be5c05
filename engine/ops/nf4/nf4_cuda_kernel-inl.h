// The kernel behind nf4_cuda_kernel.h.
#ifndef MILEPOST_ENGINE_OPS_NF4_NF4_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPS_NF4_NF4_CUDA_KERNEL_INL_H_

#include <cstdint>

#include "engine/dtype/nf4.h"
#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/stream.h"

namespace milepost::kernels::cuda {

// A thread makes 8 elements of 4 bytes: one access of a 16-bit type. The numbers that codes stand
// for lie in shared memory, each in a bank of its own.
template <typename T>
struct UnpackNf4Kernel {
  static constexpr int kThreads = 256;
  static constexpr int kElements = 8;
  static constexpr int kTableTag = 0;
  static_assert(kNf4Block % kElements == 0);
  const uint8_t* packed;
  int64_t elements;
  T* out;

  Grid grid() const { return {.x = CeilDiv(elements, kThreads * kElements)}; }

  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    auto table = c.template Shared<float, 16, kTableTag>();
    if (c.thread() < 16) table.Set(c.thread(), Nf4Value(c.thread()));
    c.Sync();
    const int64_t i = (c.block() * kThreads + c.thread()) * kElements;
    if (i >= elements) return;
    const auto* scales = reinterpret_cast<const float*>(packed + Nf4ScalesAt(elements));
    const float scale = c.Load(scales + i / kNf4Block);
    // Codes of elements behind the last are there, and not written.
    const auto codes = c.Load(reinterpret_cast<const Pack<uint8_t, 4>*>(packed + i / 2));
    float values[kElements];
    MP_UNROLL
    for (int j = 0; j < kElements; ++j) {
      const int pair = codes.v[j / 2];
      values[j] = table.Get(j % 2 == 0 ? pair >> 4 : pair & 15) * scale;
    }
    WriteUpTo(c, out + i, values, elements - i);
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_NF4_NF4_CUDA_KERNEL_INL_H_
