// The kernels behind parameter_average_cuda_kernel.h.
#ifndef MILEPOST_ENGINE_OPS_PARAMETER_AVERAGE_PARAMETER_AVERAGE_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPS_PARAMETER_AVERAGE_PARAMETER_AVERAGE_CUDA_KERNEL_INL_H_

#include <cstdint>

#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/elementwise_kernels.h"
#include "engine/kernels/cuda/flat.h"
#include "engine/ops/parameter_average/parameter_average_contract.h"

namespace milepost::kernels::cuda {

template <typename T>
struct AverageKernel {
  static constexpr int kThreads = 256;
  const T* parameters;
  int64_t n;
  const float* weight;
  const UpdateControl* control;
  float* averages;

  Grid grid() const { return {.x = CeilDiv(n, kThreads * kMapElements)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    if (c.Load(control).skip != 0) return;
    const int64_t i = (c.block() * kThreads + c.thread()) * kMapElements;
    if (i >= n) return;
    const float part = c.Load(weight);
    const auto now = ReadUpTo<kMapElements>(c, parameters + i, n - i);
    auto average = ReadUpTo<kMapElements>(c, averages + i, n - i);
    MP_UNROLL
    for (int j = 0; j < kMapElements; ++j) average.v[j] += part * (now.v[j] - average.v[j]);
    WriteUpTo(c, averages + i, average.v, n - i);
  }
};

struct SwapAveragesKernel {
  static constexpr int kThreads = 256;
  int64_t n;
  float* parameters;
  float* averages;

  Grid grid() const { return {.x = CeilDiv(n, kThreads * kMapElements)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t i = (c.block() * kThreads + c.thread()) * kMapElements;
    if (i >= n) return;
    const auto parameter = ReadUpTo<kMapElements>(c, parameters + i, n - i);
    const auto average = ReadUpTo<kMapElements>(c, averages + i, n - i);
    WriteUpTo(c, parameters + i, average.v, n - i);
    WriteUpTo(c, averages + i, parameter.v, n - i);
  }
};

// kBack: ReturnParameters. `averages`: the bits of floats.
template <bool kBack>
struct ExchangeBitsKernel {
  static constexpr int kThreads = 256;
  int64_t n;
  bf16* parameters;
  uint32_t* averages;

  Grid grid() const { return {.x = CeilDiv(n, kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t i = c.block() * kThreads + c.thread();
    if (i >= n) return;
    const uint16_t parameter = c.Load(parameters + i).bits;
    const uint32_t average = c.Load(averages + i);
    const ExchangedBits bits =
        kBack ? ReturnParameter(parameter, average) : TakeAverage(parameter, average);
    c.Store(parameters + i, bf16{bits.parameter});
    c.Store(averages + i, bits.average);
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_PARAMETER_AVERAGE_PARAMETER_AVERAGE_CUDA_KERNEL_INL_H_
