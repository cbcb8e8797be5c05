// Whether a GPU computes as it should: for one that the driver has reported an error of.
//
//   MP_RETURN_IF_ERROR(CheckGpu(/*ordinal=*/0));
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_CUDA_GPU_CHECK_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_CUDA_GPU_CHECK_H_

#include "absl/status/status.h"

namespace milepost::runtime {

// Noise goes to the device's memory and back, and a large matrix product is made twice: the bytes
// must be the same, and the product's numbers. Takes about 1 GiB of its memory, and blocks for a
// second or two. DATA_LOSS where they are not; otherwise the device's errors.
absl::Status CheckGpu(int ordinal);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_CUDA_GPU_CHECK_H_
