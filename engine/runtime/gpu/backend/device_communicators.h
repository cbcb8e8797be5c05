// The communicators of a rank's device: one for each stream of the plan by which ranks communicate.
// What the stages of a pipeline hand on in one direction waits for no collective, nor for the other
// direction.
//
//   DeviceCommunicators communicators;
//   MP_RETURN_IF_ERROR(communicators.Open(plan, connect));        // none where there is one rank
//   ...                                                           // the arena is allocated
//   for (const std::string& note : communicators.Register(arena, plan.arena_bytes)) ...
//   MP_RETURN_IF_ERROR(communicators.ConnectStages(plan, rank, arena, &device, streams, timeout));
//
// One thread at a time; Abort from any thread between Open and Close.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_DEVICE_COMMUNICATORS_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_DEVICE_COMMUNICATORS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/gpu/backend/device_communicator.h"
#include "engine/runtime/gpu/device/device.h"
#include "engine/runtime/gpu/device/device_executor.h"

namespace milepost::runtime {

// Of the plan's ranks, for the calls of one of its streams. Collective, and blocks; every rank asks
// for the same streams in the same order.
using ConnectDevices = std::function<absl::StatusOr<std::unique_ptr<DeviceCommunicator>>(
    const plan::StepPlan& plan, plan::Stream stream)>;

class DeviceCommunicators {
 public:
  absl::Status Open(const plan::StepPlan& plan, const ConnectDevices& connect);
  // Null where there is none.
  DeviceCommunicator* Of(plan::Stream stream) const {
    return of_stream_[static_cast<size_t>(stream)].get();
  }
  // Whether a step that calls all of them may be captured.
  bool capturable() const;
  // DeviceCommunicator::Register of each; what it says.
  std::vector<std::string> Register(char* memory, int64_t bytes);
  // Sends a byte to each neighbour in the pipeline, in the order of the stages (of an interleaved
  // one from the last stage to the first at the end): the first call
  // between two ranks may hold up a host until the other one comes to it, which in a step could be
  // a ring of hosts. Collective, and blocks. The arena's first bytes become zeros.
  absl::Status ConnectStages(const plan::StepPlan& plan, int rank, char* arena, Device* device,
                             const DeviceStreams& streams, absl::Duration timeout);
  // The first error of any; the others are aborted with it.
  absl::Status Health();
  void Abort(absl::string_view reason);
  // Once their streams' work is done, or after an error.
  void Close();

 private:
  std::vector<DeviceCommunicator*> All() const;

  std::unique_ptr<DeviceCommunicator> of_stream_[plan::kStreams];
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_DEVICE_COMMUNICATORS_H_
