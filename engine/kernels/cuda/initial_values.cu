#include "engine/kernels/cuda/initial_values.h"

#include "engine/kernels/cuda/initial_values_kernels.h"
#include "engine/kernels/cuda/launch-inl.h"

namespace milepost::kernels::cuda {
namespace {

template <typename Numbers, typename T>
absl::Status Draw(const Numbers& numbers, T* out, int64_t n, RandomKey key, uint64_t first,
                  cudaStream_t stream) {
  const DrawKernel<Numbers, T> kernel{numbers, out, n, key, first};
  return n == 0 ? absl::OkStatus() : Launch(kernel, kernel.grid(), stream, "InitialValues");
}

}  // namespace

template <typename T>
absl::Status NormalInit(T* out, int64_t n, float stddev, RandomKey key, uint64_t first,
                        cudaStream_t stream) {
  return Draw(NormalNumbers{stddev}, out, n, key, first, stream);
}
template absl::Status NormalInit(float*, int64_t, float, RandomKey, uint64_t, cudaStream_t);
template absl::Status NormalInit(bf16*, int64_t, float, RandomKey, uint64_t, cudaStream_t);
template absl::Status NormalInit(f16*, int64_t, float, RandomKey, uint64_t, cudaStream_t);

template <typename T>
absl::Status UniformInit(T* out, int64_t n, float bound, RandomKey key, uint64_t first,
                         cudaStream_t stream) {
  return Draw(UniformNumbers{bound}, out, n, key, first, stream);
}
template absl::Status UniformInit(float*, int64_t, float, RandomKey, uint64_t, cudaStream_t);
template absl::Status UniformInit(bf16*, int64_t, float, RandomKey, uint64_t, cudaStream_t);
template absl::Status UniformInit(f16*, int64_t, float, RandomKey, uint64_t, cudaStream_t);

template <typename T>
absl::Status ConstantInit(T* out, int64_t n, float value, cudaStream_t stream) {
  return Draw(ConstantNumbers{value}, out, n, RandomKey{}, 0, stream);
}
template absl::Status ConstantInit(float*, int64_t, float, cudaStream_t);
template absl::Status ConstantInit(bf16*, int64_t, float, cudaStream_t);
template absl::Status ConstantInit(f16*, int64_t, float, cudaStream_t);

}  // namespace milepost::kernels::cuda
