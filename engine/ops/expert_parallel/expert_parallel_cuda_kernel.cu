#include "engine/ops/expert_parallel/expert_parallel_cuda_kernel.h"

#include "engine/kernels/cuda/launch-inl.h"
#include "engine/ops/expert_parallel/expert_parallel_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {

absl::Status CountRowsForExperts(const ExpertCounts& counts, const int32_t* offsets,
                                 cudaStream_t stream) {
  const CountRowsForExpertsKernel kernel{counts, offsets};
  return Launch(kernel, kernel.grid(), stream, "CountRowsForExperts");
}

absl::Status SegmentsOfCounts(const ExpertCounts& counts, int32_t* segments, cudaStream_t stream) {
  const SegmentsKernel kernel{counts, segments};
  return Launch(kernel, kernel.grid(), stream, "SegmentsOfCounts");
}

}  // namespace milepost::kernels::cuda
