// Launches of gated_rows_kernels.h, for the *.cu of the rooms that have a gated activation.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_GATED_ROWS_INL_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_GATED_ROWS_INL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/gated_rows_kernels.h"
#include "engine/kernels/cuda/launch-inl.h"

namespace milepost::kernels::cuda {

template <typename Gate, typename T>
absl::Status LaunchGatedForward(const T* x, int64_t rows, int64_t width, T* y, cudaStream_t stream,
                                const char* name) {
  const auto launch = [&](const auto& kernel) {
    return Launch(kernel, kernel.grid(), stream, name);
  };
  if (width % 8 == 0) return launch(GatedForwardKernel<Gate, T, 8>{x, rows, width, y});
  return launch(GatedForwardKernel<Gate, T, 1>{x, rows, width, y});
}

template <typename Gate, typename T>
absl::Status LaunchGatedBackward(const T* x, const T* dy, int64_t rows, int64_t width, T* dx,
                                 cudaStream_t stream, const char* name) {
  const auto launch = [&](const auto& kernel) {
    return Launch(kernel, kernel.grid(), stream, name);
  };
  if (width % 8 == 0) return launch(GatedBackwardKernel<Gate, T, 8>{x, dy, rows, width, dx});
  return launch(GatedBackwardKernel<Gate, T, 1>{x, dy, rows, width, dx});
}

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_GATED_ROWS_INL_H_
