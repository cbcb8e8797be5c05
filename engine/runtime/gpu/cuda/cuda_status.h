// Errors of the CUDA runtime as statuses, with what to do about those that users meet.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_CUDA_CUDA_STATUS_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_CUDA_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace milepost::runtime {

// `call`: what failed, for the message. RESOURCE_EXHAUSTED: memory of the device or pinned memory
// of the host; FAILED_PRECONDITION: no device, no driver or one too old; INTERNAL: all else. The
// former, and a device that is lost (ECC, hardware, reset: only another process, perhaps on another
// device, can go on), are marked (device_failure.h).
absl::Status CudaStatus(cudaError_t error, absl::string_view call);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_CUDA_CUDA_STATUS_H_
