// Numbers that a step makes on the device and its host must know before it can enqueue what
// follows: how many rows go to which expert rank. Copies of those values in host memory, one place
// for each value of each program.
//
//   MP_ASSIGN_OR_RETURN(HostNumbers numbers, HostNumbers::Make({&plan.train}));
//   numbers.SetWait([&](StreamId s) { return device.Synchronize(s, absl::Seconds(60)); });
//   ... // an executor reads values into their places, and waits, before the first op that has them
//   const int32_t* offsets = numbers.Of(plan.train, op.inputs[1]);   // for such an op
//
// Movable. One thread at a time.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_DEVICE_HOST_NUMBERS_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_DEVICE_HOST_NUMBERS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/gpu/device/device.h"
#include "engine/runtime/gpu/device/host_mirror.h"

namespace milepost::runtime {

class HostNumbers {
 public:
  // Until all work of the stream is done; the errors end the step.
  using Wait = std::function<absl::Status(StreamId)>;

  // `programs` must outlive it. RESOURCE_EXHAUSTED as HostMirror.
  static absl::StatusOr<HostNumbers> Make(absl::Span<const plan::Program* const> programs);

  // Whether no program needs any.
  bool empty() const { return places_.empty(); }
  void SetWait(Wait wait) { wait_ = std::move(wait); }
  // So that they are copied without a detour, and with one wait instead of two.
  absl::Status Pin(Device& device);

  // The values that the host must know before it enqueues the op.
  static std::vector<graph::ValueId> NeededFor(const graph::Op& op);
  // Of a value that some op of the program needs. Lasts as long as these numbers.
  const int32_t* Of(const plan::Program& program, graph::ValueId value) const;

  // Of such a value, which lies there in the device's memory, to its place.
  struct Copy {
    char* to = nullptr;
    const char* from = nullptr;
    int64_t bytes = 0;
  };
  Copy CopyOf(const plan::Program& program, graph::ValueId value, const char* made) const;
  // Makes the copies once the stream's work so far is done, and waits for that.
  absl::Status Read(Device& device, StreamId stream, absl::Span<const Copy> copies) const;

 private:
  using Key = std::pair<const plan::Program*, graph::ValueId>;

  char* PlaceOf(const plan::Program& program, graph::ValueId value) const;

  std::map<Key, int64_t> places_;
  std::optional<HostMirror> memory_;
  int64_t bytes_ = 0;
  bool pinned_ = false;
  Wait wait_;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_DEVICE_HOST_NUMBERS_H_
