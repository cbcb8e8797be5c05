#include "engine/runtime/device/device_executor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace milepost::runtime {
namespace {

std::vector<MemoryAccess> AccessesOf(const plan::StepPlan& plan, const plan::PlannedOp& op,
                                     const char* arena) {
  std::vector<MemoryAccess> accesses;
  for (const plan::Access& access : op.accesses) {
    const char* buffer = arena + plan.buffers[access.buffer].offset;
    accesses.push_back({buffer + access.begin, buffer + access.end, access.write});
  }
  return accesses;
}

}  // namespace

absl::StatusOr<DeviceStreams> DeviceStreams::Add(Device& device) {
  DeviceStreams streams;
  MP_ASSIGN_OR_RETURN(streams.compute, device.AddStream());
  MP_ASSIGN_OR_RETURN(streams.communication, device.AddStream());
  return streams;
}

absl::StatusOr<std::unique_ptr<DeviceExecutor>> DeviceExecutor::Create(
    const plan::StepPlan& plan, const plan::Program& program, Backend* backend, Device* device,
    const DeviceStreams& streams, const char* arena) {
  auto executor = std::unique_ptr<DeviceExecutor>(new DeviceExecutor(device, streams));
  for (EventId& event : executor->end_events_) {
    MP_ASSIGN_OR_RETURN(event, device->AddEvent());
  }
  MP_RETURN_IF_ERROR(executor->Bind(plan, program, backend, arena));
  return executor;
}

absl::Status DeviceExecutor::Bind(const plan::StepPlan& plan, const plan::Program& program,
                                  Backend* backend, const char* arena) {
  section_of_ = SectionsOf(program);
  thunks_.resize(program.ops.size());
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const plan::PlannedOp& op = program.ops[i];
    absl::StatusOr<BoundOp> bound = backend->Bind(plan, program, op);
    if (!bound.ok()) {
      return Annotate(bound.status(), absl::StrCat("op ", i, " (", graph::Name(op.op.kind), ")"));
    }
    Thunk& thunk = thunks_[i];
    thunk.run = *std::move(bound);
    thunk.planned = &op;
    thunk.name = absl::StrCat("op ", i, " (", graph::Name(op.op.kind), ")");
    thunk.accesses = AccessesOf(plan, op, arena);
    for (const int32_t before : op.wait_for) {
      MP_CHECK(program.ops[before].stream != op.stream && before < static_cast<int32_t>(i));
      thunk.waits_for.push_back(before);
      if (thunks_[before].event >= 0) continue;
      MP_ASSIGN_OR_RETURN(thunks_[before].event, device_->AddEvent());
    }
  }
  return absl::OkStatus();
}

// Ops of earlier sections are behind a join, but for those of the last micro-step in kReduce.
bool DeviceExecutor::MustWait(const Thunk& before, Section section,
                              const StepContext& context) const {
  const Section theirs = section_of_[&before - thunks_.data()];
  if (theirs != section) return section == Section::kReduce;
  return before.planned->when != plan::When::kLastMicroStep || context.last_micro_step;
}

absl::Status DeviceExecutor::EnqueueOp(const Thunk& thunk, Section section,
                                       const StepContext& context, PieceTimer* timer) {
  const StreamId stream = streams_[static_cast<int>(thunk.planned->stream)];
  const auto op = static_cast<int32_t>(&thunk - thunks_.data());
  const bool waits =
      std::any_of(thunk.waits_for.begin(), thunk.waits_for.end(),
                  [&](int32_t before) { return MustWait(thunks_[before], section, context); });
  if (timer != nullptr) MP_RETURN_IF_ERROR(timer->BeforeWaits(op, stream, waits));
  for (const int32_t before : thunk.waits_for) {
    if (!MustWait(thunks_[before], section, context)) continue;
    MP_RETURN_IF_ERROR(device_->Wait(stream, thunks_[before].event));
  }
  if (timer != nullptr) MP_RETURN_IF_ERROR(timer->BeforeOp(op, stream));
  MP_RETURN_IF_ERROR(
      device_->Enqueue(stream, {.issue = [&thunk, context] { return thunk.run(context); },
                                .name = thunk.name,
                                .accesses = thunk.accesses}));
  return thunk.event < 0 ? absl::OkStatus() : device_->Record(thunk.event, stream);
}

absl::Status DeviceExecutor::Join() {
  for (size_t i = 0; i < streams_.size(); ++i) {
    MP_RETURN_IF_ERROR(device_->Record(end_events_[i], streams_[i]));
  }
  for (size_t i = 0; i < streams_.size(); ++i) {
    MP_RETURN_IF_ERROR(device_->Wait(streams_[i], end_events_[1 - i]));
  }
  return absl::OkStatus();
}

absl::Status DeviceExecutor::Run(Section section, const StepContext& context, PieceTimer* timer) {
  for (size_t i = 0; i < thunks_.size(); ++i) {
    if (section_of_[i] != section) continue;
    const bool last_only = thunks_[i].planned->when == plan::When::kLastMicroStep;
    if (last_only && !context.last_micro_step) continue;
    MP_RETURN_IF_ERROR(EnqueueOp(thunks_[i], section, context, timer));
  }
  if (section == Section::kMicroStep && context.last_micro_step) return absl::OkStatus();
  if (timer != nullptr) MP_RETURN_IF_ERROR(timer->BeforeJoin());
  return Join();
}

absl::StatusOr<GraphId> DeviceExecutor::Capture(absl::Span<const Section> sections,
                                                const StepContext& context, PieceTimer* timer) {
  const StreamId compute = streams_[static_cast<int>(plan::Stream::kCompute)];
  const StreamId communication = streams_[static_cast<int>(plan::Stream::kCommunication)];
  MP_RETURN_IF_ERROR(device_->BeginCapture(compute));
  // So that work of the communication stream that waits for none of the other's is captured too.
  MP_RETURN_IF_ERROR(device_->Record(end_events_[0], compute));
  MP_RETURN_IF_ERROR(device_->Wait(communication, end_events_[0]));
  for (const Section section : sections) {
    MP_RETURN_IF_ERROR(Run(section, context, timer));
  }
  MP_RETURN_IF_ERROR(Join());
  // The capture ends with one stream: the other's waits of the join are its work too.
  MP_RETURN_IF_ERROR(device_->Record(end_events_[1], communication));
  MP_RETURN_IF_ERROR(device_->Wait(compute, end_events_[1]));
  return device_->EndCapture(compute);
}

absl::Status DeviceExecutor::Launch(GraphId graph) {
  const StreamId compute = streams_[static_cast<int>(plan::Stream::kCompute)];
  MP_RETURN_IF_ERROR(device_->Launch(graph, compute));
  return Join();
}

absl::Status DeviceExecutor::Synchronize(absl::Duration timeout) {
  for (const StreamId stream : streams_) {
    MP_RETURN_IF_ERROR(device_->Synchronize(stream, timeout));
  }
  return absl::OkStatus();
}

}  // namespace milepost::runtime
