// Where the rows of expert ranks begin, on a GPU (expert_parallel.h: kExpertSegments). Device
// memory. Asynchronous on `stream`.
#ifndef MILEPOST_ENGINE_OPS_EXPERT_PARALLEL_EXPERT_PARALLEL_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPS_EXPERT_PARALLEL_EXPERT_PARALLEL_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/stream.h"

namespace milepost::kernels::cuda {

// Of each rank as many neighbouring experts: `first` to `end` are the own ones.
struct ExpertCounts {
  int64_t experts = 0;  // of all ranks
  int64_t first = 0, end = 0;
  int32_t* sent = nullptr;      // [experts], to each expert
  int32_t* received = nullptr;  // [experts], of each rank for each own one
};

// sent[e] = offsets[e + 1] - offsets[e], and what is for the own experts is received at once.
absl::Status CountRowsForExperts(const ExpertCounts& counts, const int32_t* offsets,
                                 cudaStream_t stream);
// segments[i] = the sum of what is received in front of i; [experts + 1]. Numbers that others have
// made up wrap around.
absl::Status SegmentsOfCounts(const ExpertCounts& counts, int32_t* segments, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_EXPERT_PARALLEL_EXPERT_PARALLEL_CUDA_KERNEL_H_
