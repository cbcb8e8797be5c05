// Walks a plan::Program on a Device: enqueues every op on the stream that the plan gives it, with
// the plan's waits as events, and waits itself only for numbers that an op's host must know
// (host_numbers.h). The counterpart of Executor (executor.h), with the same sections.
//
//   MP_ASSIGN_OR_RETURN(const DeviceStreams streams, DeviceStreams::Add(device));
//   MP_ASSIGN_OR_RETURN(auto executor, DeviceExecutor::Create(plan, plan.train, &backend, &device,
//                                                             streams, arena));
//   for (each micro-step) MP_RETURN_IF_ERROR(executor->Run(Section::kMicroStep, context));
//   MP_RETURN_IF_ERROR(executor->Run(Section::kReduce, context));
//   MP_RETURN_IF_ERROR(executor->Synchronize(timeout));   // the scalars may be read now
//   MP_RETURN_IF_ERROR(executor->Run(Section::kUpdate, context));
//
// Streams are joined as the plan wants it: before and after each section, but for the communication
// of a last micro-step, which goes on beside the first ops of kReduce.
//
// A section may be captured: Capture(sections, context) makes a graph of them in order, and Launch
// runs it. What a captured op takes from the context is what it was at the capture.
//
// What a pipeline's stage receives is planned ahead, and enqueued where something waits for it or
// is behind it on its stream: a kernel that is loaded on first use waits for the whole device,
// which must not wait for what this host has not enqueued yet.
//
// One thread at a time.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_DEVICE_DEVICE_EXECUTOR_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_DEVICE_DEVICE_EXECUTOR_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/executor/backend.h"
#include "engine/runtime/executor/executor.h"
#include "engine/runtime/executor/step_context.h"
#include "engine/runtime/gpu/device/device.h"
#include "engine/runtime/gpu/device/host_numbers.h"
#include "engine/runtime/gpu/device/piece_timer.h"
#include "engine/runtime/offload/offload_copy.h"

namespace milepost::runtime {

// All programs of a plan share these: their ops touch the same bytes.
struct DeviceStreams {
  // With those that a plan with these options uses. What is on disk is begun in the host's stream.
  static absl::StatusOr<DeviceStreams> Add(Device& device, const plan::PlanOptions& options = {});
  StreamId Of(plan::Stream stream) const;

  StreamId compute = 0;
  StreamId communication = 0;
  StreamId to_host = -1;
  StreamId to_device = -1;
  StreamId host = -1;
  StreamId stage_activations = -1;
  StreamId stage_gradients = -1;
};

// The host's side of a rank's program.
struct HostSide {
  char* host_arena = nullptr;  // the plan's; null where nothing is offloaded
  int rank = 0;
  HostNumbers* numbers = nullptr;  // null where no op's host must know any
};

class DeviceExecutor {
 public:
  // What is given must outlive the executor. `arena`: where the plan's buffers lie. The backend
  // binds ops to the same streams.
  static absl::StatusOr<std::unique_ptr<DeviceExecutor>> Create(
      const plan::StepPlan& plan, const plan::Program& program, Backend* backend, Device* device,
      const DeviceStreams& streams, char* arena, const HostSide& host = {});

  // What the host's updates read when they run, enqueued or launched: call it when none is under
  // way, which holds after Synchronize.
  void SetHostContext(const StepContext& context) { host_context_ = context; }

  // Enqueues the section. The errors are the device's. `timer`, where given, has been restarted,
  // and is told what is enqueued.
  absl::Status Run(Section section, const StepContext& context, PieceTimer* timer = nullptr);

  // kReduce goes with the last micro-step that it reduces. `timer` as above; each launch is timed.
  absl::StatusOr<GraphId> Capture(absl::Span<const Section> sections, const StepContext& context,
                                  PieceTimer* timer = nullptr);
  absl::Status Launch(GraphId graph);

  // Until everything that was enqueued is done.
  absl::Status Synchronize(absl::Duration timeout);

 private:
  struct Thunk {
    BoundOp run;
    const plan::PlannedOp* planned = nullptr;
    std::string name;
    std::vector<MemoryAccess> accesses;
    // Of the device's, and not read yet where the op is enqueued.
    std::vector<HostNumbers::Copy> numbers;
    OffloadCopy copy;  // of nothing where the op does more
    Work host;         // of the host's stream
    StreamId stream = 0;
    EventId event = -1;              // recorded after it, where another stream waits for it
    std::vector<int32_t> waits_for;  // indices of ops of other streams
  };

  DeviceExecutor(Device* device, const DeviceStreams& streams)
      : device_(device), streams_(streams) {}
  absl::Status AddJoined(const plan::Program& program);
  absl::Status Bind(const plan::StepPlan& plan, const plan::Program& program, Backend* backend,
                    char* arena, const HostSide& host);
  // Of a section that is being enqueued.
  struct Enqueuing {
    Section section;
    const StepContext& context;
    PieceTimer* timer;
  };
  absl::Status EnqueueWork(const Thunk& thunk, const StepContext& context);
  absl::Status EnqueueOp(const Thunk& thunk, const Enqueuing& now);
  // What was held back on the stream, up to op `last`.
  absl::Status EnqueueHeld(StreamId stream, int32_t last, const Enqueuing& now);
  int32_t IndexOf(const Thunk& thunk) const {
    return static_cast<int32_t>(&thunk - thunks_.data());
  }
  bool MustWait(const Thunk& before, Section section, const StepContext& context) const;
  // Every stream waits for all that is on the others.
  absl::Status Join();

  Device* const device_;
  // A stream that takes part in joins, and the event that marks its end there.
  struct Joined {
    StreamId stream;
    EventId end;
  };

  const DeviceStreams streams_;
  HostNumbers* numbers_ = nullptr;
  std::vector<Joined> joined_;  // compute first
  std::vector<Thunk> thunks_;   // by op index
  std::vector<int32_t> held_;   // receives that are not enqueued yet, in program order
  StepContext host_context_;
  std::vector<Section> section_of_;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_DEVICE_DEVICE_EXECUTOR_H_
