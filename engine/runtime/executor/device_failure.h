// Errors whose cause is the GPU or its driver, not the job: another device may do. The mark goes
// with the status through whatever returns it.
//
//   return DeviceFailure(absl::InternalError("cudaErrorECCUncorrectable: ..."));
//   if (IsDeviceFailure(status)) ...   // the host is counted against, the job tried elsewhere
#ifndef MILEPOST_ENGINE_RUNTIME_EXECUTOR_DEVICE_FAILURE_H_
#define MILEPOST_ENGINE_RUNTIME_EXECUTOR_DEVICE_FAILURE_H_

#include "absl/status/status.h"
#include "absl/strings/cord.h"

namespace milepost::runtime {

inline constexpr absl::string_view kDevicePayload = "milepost/device";

// `error`: not OK, and of no code that a lost peer has (comm::IsPeerLost).
inline absl::Status DeviceFailure(absl::Status error) {
  error.SetPayload(kDevicePayload, absl::Cord());
  return error;
}

inline bool IsDeviceFailure(const absl::Status& status) {
  return status.GetPayload(kDevicePayload).has_value();
}

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_EXECUTOR_DEVICE_FAILURE_H_
