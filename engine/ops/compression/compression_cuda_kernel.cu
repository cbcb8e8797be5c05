#include "engine/ops/compression/compression_cuda_kernel.h"

#include "engine/kernels/cuda/elementwise_kernels.h"
#include "engine/kernels/cuda/launch-inl.h"
#include "engine/ops/compression/compression_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {

absl::Status MakeOrthonormal(const FactorRows* matrices, int64_t matrix_count,
                             const StepPosition* position, cudaStream_t stream) {
  const OrthonormalKernel kernel = {matrices, matrix_count, position};
  return Launch(kernel, kernel.grid(), stream, "MakeOrthonormal");
}

absl::Status AddScaled(float factor, const float* x, int64_t n, float* out, cudaStream_t stream) {
  const PairKernel<AddScaledFn, float> kernel = {{factor}, out, x, n, out};
  return Launch(kernel, kernel.grid(), stream, "AddScaled");
}

absl::Status CopyTensors(const CopiedTensor* tensors, int64_t tensor_count, int64_t most,
                         cudaStream_t stream) {
  const CopyTensorsKernel kernel = {tensors, tensor_count, most};
  return Launch(kernel, kernel.grid(), stream, "CopyTensors");
}

absl::Status ZeroIfSkipped(const UpdateControl* control, int64_t n, float* x, cudaStream_t stream) {
  const ZeroIfSkippedKernel kernel = {control, n, x};
  return Launch(kernel, kernel.grid(), stream, "ZeroIfSkipped");
}

}  // namespace milepost::kernels::cuda
