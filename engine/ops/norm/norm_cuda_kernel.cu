#include "engine/ops/norm/norm_cuda_kernel.h"

#include <algorithm>

#include "engine/kernels/cuda/launch-inl.h"
#include "engine/ops/norm/norm_dispatch_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {

template <typename T>
absl::Status NormForward(const NormForwardArgs<T>& args, cudaStream_t stream) {
  const auto run = [&](const auto& kernel) {
    return Launch(kernel, kernel.grid(), stream, "NormForward");
  };
  return args.beta != nullptr ? RunNormForward<true>(args, run) : RunNormForward<false>(args, run);
}

template <typename T>
absl::Status NormBackward(const NormBackwardArgs<T>& args, void* workspace, cudaStream_t stream) {
  const auto run = [&](const auto& kernel) {
    return Launch(kernel, kernel.grid(), stream, "NormBackward");
  };
  auto* partials = static_cast<float*>(workspace);
  return args.dbeta != nullptr ? RunNormBackward<true>(args, partials, run)
                               : RunNormBackward<false>(args, partials, run);
}

#define MP_INSTANTIATE(T)                                                     \
  template absl::Status NormForward(const NormForwardArgs<T>&, cudaStream_t); \
  template absl::Status NormBackward(const NormBackwardArgs<T>&, void*, cudaStream_t)
MP_INSTANTIATE(float);
MP_INSTANTIATE(bf16);
MP_INSTANTIATE(f16);

}  // namespace milepost::kernels::cuda
