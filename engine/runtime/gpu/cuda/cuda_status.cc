#include "engine/runtime/gpu/cuda/cuda_status.h"

#include "absl/strings/str_cat.h"
#include "engine/runtime/executor/device_failure.h"

namespace milepost::runtime {

absl::Status CudaStatus(cudaError_t error, absl::string_view call) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message =
      absl::StrCat(call, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error));
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::ResourceExhaustedError(message);
    case cudaErrorNoDevice:
      return DeviceFailure(absl::FailedPreconditionError(
          absl::StrCat(message,
                       "; nvidia-smi shows which GPUs the driver has, and "
                       "CUDA_VISIBLE_DEVICES hides those that it does not name")));
    case cudaErrorInsufficientDriver:
    case cudaErrorInitializationError:
    case cudaErrorStubLibrary:
      return DeviceFailure(absl::FailedPreconditionError(
          absl::StrCat(message, "; install an NVIDIA driver that knows CUDA ",
                       CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10)));
    case cudaErrorECCUncorrectable:
    case cudaErrorHardwareStackError:
    case cudaErrorDevicesUnavailable:
    case cudaErrorLaunchFailure:
    case cudaErrorContained:
      return DeviceFailure(absl::InternalError(message));
    default:
      return absl::InternalError(message);
  }
}

}  // namespace milepost::runtime
