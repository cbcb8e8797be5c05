#include "engine/ops/experts/grouped_product_cuda_kernel.h"

#include "engine/kernels/cuda/launch-inl.h"
#include "engine/ops/experts/grouped_product_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {
namespace {

template <typename T, bool kForward>
absl::Status LaunchGroupedRows(const GroupedRows<T>& product, cudaStream_t stream,
                               const char* name) {
  if (product.packs) {
    const GroupedRowsKernel<T, kPack<T>, kForward> kernel = {product};
    return Launch(kernel, kernel.grid(), stream, name);
  }
  const GroupedRowsKernel<T, 1, kForward> kernel = {product};
  return Launch(kernel, kernel.grid(), stream, name);
}

}  // namespace

template <typename T>
absl::Status GroupedForward(const GroupedRows<T>& product, cudaStream_t stream) {
  return LaunchGroupedRows<T, true>(product, stream, "GroupedForward");
}

template <typename T>
absl::Status GroupedBackwardInput(const GroupedRows<T>& product, cudaStream_t stream) {
  return LaunchGroupedRows<T, false>(product, stream, "GroupedBackwardInput");
}

template <typename T>
absl::Status GroupedBackwardWeight(const GroupedWeights<T>& product, cudaStream_t stream) {
  if (product.packs) {
    const GroupedWeightsKernel<T, kPack<T>> kernel = {product};
    return Launch(kernel, kernel.grid(), stream, "GroupedBackwardWeight");
  }
  const GroupedWeightsKernel<T, 1> kernel = {product};
  return Launch(kernel, kernel.grid(), stream, "GroupedBackwardWeight");
}

#define MP_INSTANTIATE(T)                                                          \
  template absl::Status GroupedForward(const GroupedRows<T>&, cudaStream_t);       \
  template absl::Status GroupedBackwardInput(const GroupedRows<T>&, cudaStream_t); \
  template absl::Status GroupedBackwardWeight(const GroupedWeights<T>&, cudaStream_t)
MP_INSTANTIATE(float);
MP_INSTANTIATE(bf16);
MP_INSTANTIATE(f16);

}  // namespace milepost::kernels::cuda
