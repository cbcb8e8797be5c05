// Which kernel a norm takes: shared by the launches and by the tests.
#ifndef MILEPOST_ENGINE_OPS_NORM_NORM_DISPATCH_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPS_NORM_NORM_DISPATCH_CUDA_KERNEL_INL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "common/status_macros.h"
#include "engine/kernels/cuda/column_sum_kernels.h"
#include "engine/ops/norm/norm_any_cuda_kernel-inl.h"
#include "engine/ops/norm/norm_cuda_kernel-inl.h"
#include "engine/ops/norm/norm_cuda_kernel.h"

namespace milepost::kernels::cuda {

// Groups of 64 elements of a row are groups of the mask's stream, and packs of them are aligned.
inline bool InItems(int64_t width, int64_t stride, const DropoutArgs& dropout) {
  return width % 64 == 0 && width <= kMaxItemWidth && stride % 8 == 0 &&
         (dropout.p <= 0 || MaskOf(dropout).InGroups());
}

// run(kernel) launches it.
template <bool kLayer, typename T, typename Run>
absl::Status RunNormForward(const NormForwardArgs<T>& a, const Run& run) {
  const DropoutMask mask = MaskOf(a.dropout);
  if (!InItems(a.width, a.stride, a.dropout)) return run(NormForwardAnyKernel<T, kLayer>{a, mask});
  if (a.width <= 32 * kItemElements) return run(NormForwardKernel<T, kLayer, 32>{a, mask});
  if (a.width <= 128 * kItemElements) return run(NormForwardKernel<T, kLayer, 128>{a, mask});
  if (a.width <= 256 * kItemElements) return run(NormForwardKernel<T, kLayer, 256>{a, mask});
  return run(NormForwardKernel<T, kLayer, 512>{a, mask});
}

template <typename Kernel, typename T, typename Run>
absl::Status RunBackwardKernel(const NormBackwardArgs<T>& a, float* workspace, const Run& run) {
  Kernel kernel = {a, MaskOf(a.dropout), workspace, nullptr};
  const int64_t blocks = kernel.grid().x;
  kernel.partial_beta = workspace + blocks * a.width;
  MP_RETURN_IF_ERROR(run(kernel));
  return run(ColumnSumKernel{{kernel.partial_gamma, a.accumulate, a.dgamma},
                             {kernel.partial_beta, a.accumulate, a.dbeta},
                             blocks,
                             a.width});
}

template <bool kLayer, typename T, typename Run>
absl::Status RunNormBackward(const NormBackwardArgs<T>& a, float* workspace, const Run& run) {
  const DropoutArgs none;
  // Two sums of 512 threads would need more shared memory than most devices have.
  const bool too_wide = kLayer && a.width > 256 * kItemElements;
  if (too_wide || !InItems(a.width, a.stride, a.d_delta == nullptr ? none : a.dropout)) {
    return RunBackwardKernel<NormBackwardAnyKernel<T, kLayer>>(a, workspace, run);
  }
  if (a.width <= 32 * kItemElements) {
    return RunBackwardKernel<NormBackwardKernel<T, kLayer, 32>>(a, workspace, run);
  }
  if (a.width <= 64 * kItemElements) {
    return RunBackwardKernel<NormBackwardKernel<T, kLayer, 64>>(a, workspace, run);
  }
  if (a.width <= 128 * kItemElements) {
    return RunBackwardKernel<NormBackwardKernel<T, kLayer, 128>>(a, workspace, run);
  }
  if (a.width <= 256 * kItemElements) {
    return RunBackwardKernel<NormBackwardKernel<T, kLayer, 256>>(a, workspace, run);
  }
  return RunBackwardKernel<NormBackwardKernel<T, false, 512>>(a, workspace, run);
}

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_NORM_NORM_DISPATCH_CUDA_KERNEL_INL_H_
