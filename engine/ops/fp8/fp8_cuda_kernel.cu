#include "engine/ops/fp8/fp8_cuda_kernel.h"

#include "engine/kernels/cuda/launch-inl.h"
#include "engine/ops/fp8/fp8_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {

template <typename Code>
absl::Status Quantize(const Stacked& x, const float* record, bool first, Code* codes, Code* codes_t,
                      float* slots, cudaStream_t stream) {
  const QuantizeKernel<Code> kernel = {x, record, first, codes, codes_t, slots};
  return Launch(kernel, kernel.grid(), stream, "Quantize");
}
template absl::Status Quantize(const Stacked&, const float*, bool, e4m3*, e4m3*, float*,
                               cudaStream_t);
template absl::Status Quantize(const Stacked&, const float*, bool, e5m2*, e5m2*, float*,
                               cudaStream_t);

absl::Status CalibrateScaling(const float* slots, float* record, cudaStream_t stream) {
  const CalibrateScalingKernel kernel = {slots, record};
  return Launch(kernel, kernel.grid(), stream, "CalibrateScaling");
}

absl::Status CollectAmaxes(const float* slots, int64_t tensors, float* amaxes,
                           cudaStream_t stream) {
  const CollectAmaxesKernel kernel = {slots, tensors, amaxes};
  return Launch(kernel, kernel.grid(), stream, "CollectAmaxes");
}

absl::Status UpdateScalings(const float* amaxes, int64_t ranks, int64_t tensors,
                            const UpdateControl* control, float* records, cudaStream_t stream) {
  const UpdateScalingsKernel kernel = {amaxes, ranks, tensors, control, records};
  return Launch(kernel, kernel.grid(), stream, "UpdateScalings");
}

}  // namespace milepost::kernels::cuda
