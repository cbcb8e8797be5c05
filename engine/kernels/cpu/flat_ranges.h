// How an optimizer's pass over a flat buffer is dealt out to threads.
#ifndef MILEPOST_ENGINE_KERNELS_CPU_FLAT_RANGES_H_
#define MILEPOST_ENGINE_KERNELS_CPU_FLAT_RANGES_H_

#include <cstdint>

#include "engine/kernels/cpu/parallel.h"

namespace milepost::kernels {

inline constexpr int64_t kFlatGrain = 16384;  // elements

// run(params, n, p, m, v, g, copy) over pieces; `copy` may be null.
template <typename Run, typename Params, typename T>
void RunRanges(Run run, const Params& params, int64_t n, float* p, float* m, float* v,
               const float* g, T* copy) {
  ParallelFor(0, n, kFlatGrain, [&](int64_t first, int64_t last) {
    run(params, last - first, p + first, m + first, v + first, g + first,
        copy == nullptr ? nullptr : copy + first);
  });
}
// The same of one state tensor.
template <typename Run, typename Params, typename T>
void RunRanges(Run run, const Params& params, int64_t n, float* p, float* m, const float* g,
               T* copy) {
  ParallelFor(0, n, kFlatGrain, [&](int64_t first, int64_t last) {
    run(params, last - first, p + first, m + first, g + first,
        copy == nullptr ? nullptr : copy + first);
  });
}

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_KERNELS_CPU_FLAT_RANGES_H_
