// The kernels behind expert_parallel_cuda_kernel.h.
#ifndef MILEPOST_ENGINE_OPS_EXPERT_PARALLEL_EXPERT_PARALLEL_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPS_EXPERT_PARALLEL_EXPERT_PARALLEL_CUDA_KERNEL_INL_H_

#include <cstdint>

#include "engine/kernels/cuda/context.h"
#include "engine/ops/expert_parallel/expert_parallel_cuda_kernel.h"

namespace milepost::kernels::cuda {

struct CountRowsForExpertsKernel {
  static constexpr int kThreads = 256;
  ExpertCounts counts;
  const int32_t* offsets;

  Grid grid() const { return {.x = CeilDiv(counts.experts, kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t e = c.block() * kThreads + c.thread();
    if (e >= counts.experts) return;
    const int32_t rows = c.Load(offsets + e + 1) - c.Load(offsets + e);
    c.Store(counts.sent + e, rows);
    if (e >= counts.first && e < counts.end) c.Store(counts.received + e, rows);
  }
};

// One warp: of each kWarp numbers in turn the sums so far.
struct SegmentsKernel {
  static constexpr int kThreads = kWarp;
  ExpertCounts counts;
  int32_t* segments;

  Grid grid() const { return {.x = 1}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    uint32_t before = 0;
    if (c.lane() == 0) c.Store(segments, int32_t{0});
    for (int64_t first = 0; first < counts.experts; first += kWarp) {
      const int64_t i = first + c.lane();
      uint32_t sum =
          i < counts.experts ? static_cast<uint32_t>(c.Load(counts.received + i)) : uint32_t{0};
      for (int distance = 1; distance < kWarp; distance *= 2) {
        const int lane = static_cast<int>(c.lane()) - distance;
        const uint32_t other = c.Shuffle(sum, lane < 0 ? 0 : lane);
        if (lane >= 0) sum += other;
      }
      if (i < counts.experts) c.Store(segments + i + 1, static_cast<int32_t>(before + sum));
      before += c.Shuffle(sum, kWarp - 1);
    }
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_EXPERT_PARALLEL_EXPERT_PARALLEL_CUDA_KERNEL_INL_H_
