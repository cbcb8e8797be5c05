#include "worker/trainer/failure.h"

#include "common/error_details.h"
#include "engine/comm/communicator.h"
#include "engine/runtime/executor/device_failure.h"
#include "engine/runtime/offload/state_disk.h"

namespace milepost::worker {

namespace {

TrainerExit Exit(int code, v1::FailureClass failure_class, const absl::Status& status) {
  return {code, failure_class, std::string(status.message())};
}

}  // namespace

TrainerExit SetupFailure(const absl::Status& status) {
  if (runtime::IsDiskFailure(status) || runtime::IsDeviceFailure(status)) {
    return StepFailure(status);
  }
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
      return Exit(kExitUsage, v1::FAILURE_CLASS_USER, status);
    case absl::StatusCode::kResourceExhausted:
      return Exit(kExitOutOfMemory, v1::FAILURE_CLASS_OUT_OF_MEMORY, status);
    default:
      return StepFailure(status);
  }
}

TrainerExit CopiesFailure(const absl::Status& status) {
  if (comm::IsPeerLost(status)) return StepFailure(status);
  return absl::IsResourceExhausted(status)
             ? Exit(kExitOutOfMemory, v1::FAILURE_CLASS_OUT_OF_MEMORY, status)
             : Exit(kExitError, v1::FAILURE_CLASS_HOST, status);
}

TrainerExit RestoreFailure(const absl::Status& status) {
  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
    return Exit(kExitNetwork, v1::FAILURE_CLASS_NETWORK, status);
  }
  const v1::ErrorReason reason = ReasonOf(status);
  const bool deleted =
      reason == v1::ERROR_REASON_CHECKPOINT_DELETED || reason == v1::ERROR_REASON_CHECKPOINT_IN_USE;
  return absl::IsDataLoss(status) || absl::IsNotFound(status) || deleted
             ? Exit(kExitData, v1::FAILURE_CLASS_DATA, status)
             : SetupFailure(status);
}

TrainerExit StepFailure(const absl::Status& status) {
  // Another host's disk may do: counted against this one.
  if (runtime::IsDiskFailure(status)) return Exit(kExitError, v1::FAILURE_CLASS_HOST, status);
  if (runtime::IsDeviceFailure(status)) {
    return Exit(kExitError, v1::FAILURE_CLASS_DEVICE, status);
  }
  if (comm::IsPeerLost(status)) return Exit(kExitPeerLost, v1::FAILURE_CLASS_NETWORK, status);
  switch (status.code()) {
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kOutOfRange:
      return Exit(kExitData, v1::FAILURE_CLASS_DATA, status);
    // A token id outside the vocabulary: trying again reads the same.
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
      return Exit(kExitUsage, v1::FAILURE_CLASS_USER, status);
    default:
      return Exit(kExitError, v1::FAILURE_CLASS_INTERNAL, status);
  }
}

}  // namespace milepost::worker
