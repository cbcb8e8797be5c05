#include "engine/ops/pooling/pooling_cuda_kernel.h"

#include "engine/kernels/cuda/launch-inl.h"
#include "engine/ops/pooling/pooling_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {
namespace {

template <typename Kernel>
absl::Status Go(const Kernel& kernel, cudaStream_t stream, const char* name) {
  return Launch(kernel, kernel.grid(), stream, name);
}

}  // namespace

template <typename T>
absl::Status MaxPoolForward(const PoolSpec& spec, const T* x, T* y, uint8_t* winners,
                            cudaStream_t stream) {
  const int64_t rows = spec.OutHeight(), columns = spec.OutWidth();
  if (spec.channels % 8 == 0) {
    return Go(MaxPoolForwardKernel<T, 8>{spec, rows, columns, x, y, winners}, stream,
              "MaxPoolForward");
  }
  return Go(MaxPoolForwardKernel<T, 1>{spec, rows, columns, x, y, winners}, stream,
            "MaxPoolForward");
}

template <typename T>
absl::Status MaxPoolBackward(const PoolSpec& spec, const uint8_t* winners, const T* dy,
                             const T* dy2, T* dx, cudaStream_t stream) {
  const int64_t rows = spec.OutHeight(), columns = spec.OutWidth();
  if (spec.channels % 8 == 0) {
    return Go(MaxPoolBackwardKernel<T, 8>{spec, rows, columns, winners, dy, dy2, dx}, stream,
              "MaxPoolBackward");
  }
  return Go(MaxPoolBackwardKernel<T, 1>{spec, rows, columns, winners, dy, dy2, dx}, stream,
            "MaxPoolBackward");
}

template <typename T>
absl::Status AveragePoolForward(const T* x, int64_t batch, int64_t pixels, int64_t channels, T* y,
                                cudaStream_t stream) {
  return Go(AveragePoolForwardKernel<T>{x, batch, pixels, channels, y}, stream,
            "AveragePoolForward");
}

template <typename T>
absl::Status AveragePoolBackward(const T* dy, int64_t batch, int64_t pixels, int64_t channels,
                                 T* dx, cudaStream_t stream) {
  return Go(AveragePoolBackwardKernel<T>{dy, batch, pixels, channels, dx}, stream,
            "AveragePoolBackward");
}

template <typename T>
absl::Status LookUpChannels(const uint8_t* x, int64_t pixels, int64_t channels, const T* table,
                            T* y, cudaStream_t stream) {
  return Go(LookUpKernel<T>{x, pixels * channels, channels, table, y}, stream, "LookUpChannels");
}

#define MP_INSTANTIATE(T)                                                                          \
  template absl::Status MaxPoolForward(const PoolSpec&, const T*, T*, uint8_t*, cudaStream_t);     \
  template absl::Status MaxPoolBackward(const PoolSpec&, const uint8_t*, const T*, const T*, T*,   \
                                        cudaStream_t);                                             \
  template absl::Status AveragePoolForward(const T*, int64_t, int64_t, int64_t, T*, cudaStream_t); \
  template absl::Status AveragePoolBackward(const T*, int64_t, int64_t, int64_t, T*,               \
                                            cudaStream_t);                                         \
  template absl::Status LookUpChannels(const uint8_t*, int64_t, int64_t, const T*, T*, cudaStream_t)
MP_INSTANTIATE(float);
MP_INSTANTIATE(bf16);

}  // namespace milepost::kernels::cuda
