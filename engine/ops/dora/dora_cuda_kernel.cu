#include "engine/ops/dora/dora_cuda_kernel.h"

#include "engine/kernels/cuda/launch-inl.h"
#include "engine/ops/dora/dora_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {

template <typename T>
absl::Status DoraNorms(const DoraNormsArgs<T>& args, cudaStream_t stream) {
  return RunDoraNorms(
      args, [&](const auto& kernel) { return Launch(kernel, kernel.grid(), stream, "DoraNorms"); });
}

template <typename T>
absl::Status DoraForward(const DoraForwardArgs<T>& args, void* workspace, cudaStream_t stream) {
  return RunDoraForward(args, workspace, [&](const auto& kernel) {
    return Launch(kernel, kernel.grid(), stream, "DoraForward");
  });
}

template <typename T>
absl::Status DoraBackward(const DoraBackwardArgs<T>& args, void* workspace, cudaStream_t stream) {
  return RunDoraBackward(args, workspace, [&](const auto& kernel) {
    return Launch(kernel, kernel.grid(), stream, "DoraBackward");
  });
}

#define MP_INSTANTIATE(T)                                                            \
  template absl::Status DoraNorms(const DoraNormsArgs<T>&, cudaStream_t);            \
  template absl::Status DoraForward(const DoraForwardArgs<T>&, void*, cudaStream_t); \
  template absl::Status DoraBackward(const DoraBackwardArgs<T>&, void*, cudaStream_t)
MP_INSTANTIATE(float);
MP_INSTANTIATE(bf16);
MP_INSTANTIATE(f16);

}  // namespace milepost::kernels::cuda
