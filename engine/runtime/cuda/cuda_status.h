// Errors of the CUDA runtime as statuses, with what to do about those that users meet.
#ifndef MILEPOST_ENGINE_RUNTIME_CUDA_CUDA_STATUS_H_
#define MILEPOST_ENGINE_RUNTIME_CUDA_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace milepost::runtime {

// `call`: what failed, for the message. RESOURCE_EXHAUSTED: memory of the device or pinned memory
// of the host; FAILED_PRECONDITION: no device, no driver or one too old; UNAVAILABLE: the device is
// lost (ECC, hardware, reset) and only another process, perhaps on another device, can go on;
// INTERNAL: all else.
absl::Status CudaStatus(cudaError_t error, absl::string_view call);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_CUDA_CUDA_STATUS_H_
