#include "coordinator/metrics/names.h"

#include "absl/strings/ascii.h"
#include "coordinator/core/state.h"

namespace milepost::coordinator {
namespace {

std::string Without(const std::string& prefix, const std::string& name) {
  return name.substr(prefix.size());
}

}  // namespace

std::string StateLabel(v1::JobState state) {
  return Without("JOB_STATE_", v1::JobState_Name(state));
}

std::string StateLabel(v1::WorkerState state) {
  return Without("WORKER_STATE_", v1::WorkerState_Name(state));
}

std::string FailureLabel(v1::FailureClass failure) {
  return Without("FAILURE_CLASS_", v1::FailureClass_Name(failure));
}

std::string DeviceLabel(v1::DeviceKind device) {
  return absl::AsciiStrToLower(Without("DEVICE_KIND_", v1::DeviceKind_Name(device)));
}

std::string QueueLabel(const v1::Job& job) {
  const std::string& queue = job.spec().scheduling().queue();
  return queue.empty() ? kDefaultQueue : queue;
}

}  // namespace milepost::coordinator
