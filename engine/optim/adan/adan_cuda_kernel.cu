#include "engine/optim/adan/adan_cuda_kernel.h"

#include "engine/kernels/cuda/flat_update_kernels.h"
#include "engine/kernels/cuda/launch-inl.h"
#include "engine/optim/adan/adan_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {

template <typename T, typename S, typename P, typename G>
absl::Status Adan(const FlatUpdate<T, S, P, G>& update, cudaStream_t stream) {
  const FlatUpdateKernel<AdanRule, T, S, P, G> kernel = {update};
  return Launch(kernel, kernel.grid(), stream, "Adan");
}

#define MP_INSTANTIATE(T, S, P, G) \
  template absl::Status Adan(const FlatUpdate<T, S, P, G>&, cudaStream_t)
MP_FOR_FLAT_UPDATES(MP_INSTANTIATE);

}  // namespace milepost::kernels::cuda
