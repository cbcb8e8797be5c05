#include "engine/ops/experts/experts_cuda_kernel.h"

#include "engine/kernels/cuda/launch-inl.h"
#include "engine/ops/experts/experts_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {

template <typename T>
absl::Status RouteExperts(const ExpertRouting& routing, const int64_t* last, const T* logits,
                          const RoutedTo& to, void* workspace, cudaStream_t stream) {
  const RoutingWorkspace layout(routing);
  char* bytes = static_cast<char*>(workspace);
  const RoutingScratch scratch = {.order = reinterpret_cast<int32_t*>(bytes),
                                  .keys = reinterpret_cast<RowKey*>(bytes + layout.OrderBytes())};
  return RunRouteExperts(routing, last, logits, to, scratch, [&](const auto& kernel) {
    return Launch(kernel, kernel.grid(), stream, "RouteExperts");
  });
}

template <typename T>
absl::Status RouteExpertsBackward(const ExpertRouting& routing, const T* logits,
                                  const float* weights, const int32_t* chosen,
                                  const float* dweights, const float* slopes, T* dlogits,
                                  cudaStream_t stream) {
  const RouteBackwardKernel<T> kernel = {routing,  logits, weights, chosen,
                                         dweights, slopes, dlogits};
  return Launch(kernel, kernel.grid(), stream, "RouteExpertsBackward");
}

template <typename T>
absl::Status DispatchRows(const RoutedRows& shape, const T* x, const int32_t* slots, T* y,
                          cudaStream_t stream) {
  if (shape.width % kPack<T> == 0) {
    const DispatchRowsKernel<T, kPack<T>> kernel = {shape, x, slots, y};
    return Launch(kernel, kernel.grid(), stream, "DispatchRows");
  }
  const DispatchRowsKernel<T, 1> kernel = {shape, x, slots, y};
  return Launch(kernel, kernel.grid(), stream, "DispatchRows");
}

template <typename T>
absl::Status CombineRows(const RoutedRows& shape, const T* y, const float* weights,
                         const int32_t* slots, T* out, cudaStream_t stream) {
  if (shape.width % kPack<T> == 0) {
    const CombineRowsKernel<T, kPack<T>> kernel = {shape, y, weights, slots, out};
    return Launch(kernel, kernel.grid(), stream, "CombineRows");
  }
  const CombineRowsKernel<T, 1> kernel = {shape, y, weights, slots, out};
  return Launch(kernel, kernel.grid(), stream, "CombineRows");
}

template <typename T>
absl::Status CombineRowsBackward(const RoutedRows& shape, const T* y, const float* weights,
                                 const int32_t* slots, const T* dout, T* dy, float* dweights,
                                 cudaStream_t stream) {
  if (shape.width % kPack<T> == 0) {
    const CombineBackwardKernel<T, kPack<T>> kernel = {shape, y,  weights, slots,
                                                       dout,  dy, dweights};
    return Launch(kernel, kernel.grid(), stream, "CombineRowsBackward");
  }
  const CombineBackwardKernel<T, 1> kernel = {shape, y, weights, slots, dout, dy, dweights};
  return Launch(kernel, kernel.grid(), stream, "CombineRowsBackward");
}

absl::Status ExpertBalance(const BalanceOf& balance, float* slopes, cudaStream_t stream) {
  const ExpertBalanceKernel kernel = {balance, slopes};
  return Launch(kernel, kernel.grid(), stream, "ExpertBalance");
}

#define MP_INSTANTIATE(T)                                                                          \
  template absl::Status RouteExperts(const ExpertRouting&, const int64_t*, const T*,               \
                                     const RoutedTo&, void*, cudaStream_t);                        \
  template absl::Status RouteExpertsBackward(const ExpertRouting&, const T*, const float*,         \
                                             const int32_t*, const float*, const float*, T*,       \
                                             cudaStream_t);                                        \
  template absl::Status DispatchRows(const RoutedRows&, const T*, const int32_t*, T*,              \
                                     cudaStream_t);                                                \
  template absl::Status CombineRows(const RoutedRows&, const T*, const float*, const int32_t*, T*, \
                                    cudaStream_t);                                                 \
  template absl::Status CombineRowsBackward(const RoutedRows&, const T*, const float*,             \
                                            const int32_t*, const T*, T*, float*, cudaStream_t)
MP_INSTANTIATE(float);
MP_INSTANTIATE(bf16);
MP_INSTANTIATE(f16);

}  // namespace milepost::kernels::cuda
