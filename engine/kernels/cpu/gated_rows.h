// Shares the rows of a gated activation out over the threads: what calls gated_rows-inl.h's loops,
// which are compiled for each SIMD target.
//
//   RunGatedForward(HWY_DYNAMIC_DISPATCH(SwiGluForwardF32), x, rows, width, y);
//
// Results do not depend on the thread count.
#ifndef MILEPOST_ENGINE_KERNELS_CPU_GATED_ROWS_H_
#define MILEPOST_ENGINE_KERNELS_CPU_GATED_ROWS_H_

#include <algorithm>
#include <cstdint>

#include "engine/kernels/cpu/parallel.h"

namespace milepost::kernels {

// Rows per thread at least.
inline int64_t GatedRowGrain(int64_t width) { return std::max<int64_t>(1, 8192 / width); }

template <typename T>
void RunGatedForward(void (*run)(const T*, int64_t, int64_t, int64_t, T*), const T* x, int64_t rows,
                     int64_t width, T* y) {
  ParallelFor(0, rows, GatedRowGrain(width),
              [&](int64_t first, int64_t last) { run(x, first, last, width, y); });
}

template <typename T>
void RunGatedBackward(void (*run)(const T*, const T*, int64_t, int64_t, int64_t, T*), const T* x,
                      const T* dy, int64_t rows, int64_t width, T* dx) {
  ParallelFor(0, rows, GatedRowGrain(width),
              [&](int64_t first, int64_t last) { run(x, dy, first, last, width, dx); });
}

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_KERNELS_CPU_GATED_ROWS_H_
