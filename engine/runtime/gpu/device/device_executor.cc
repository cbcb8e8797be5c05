#include "engine/runtime/gpu/device/device_executor.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace milepost::runtime {
namespace {

std::vector<MemoryAccess> AccessesOf(const OpBinding& b) {
  std::vector<MemoryAccess> accesses;
  for (const plan::Access& access : b.planned.accesses) {
    const char* buffer = b.BufferAt(access.buffer);
    accesses.push_back({buffer + access.begin, buffer + access.end, access.write});
  }
  return accesses;
}

}  // namespace

absl::StatusOr<DeviceStreams> DeviceStreams::Add(Device& device, const plan::PlanOptions& options) {
  DeviceStreams streams;
  MP_ASSIGN_OR_RETURN(streams.compute, device.AddStream());
  MP_ASSIGN_OR_RETURN(streams.communication, device.AddStream());
  if (options.Offloads()) {
    MP_ASSIGN_OR_RETURN(streams.to_host, device.AddStream());
    MP_ASSIGN_OR_RETURN(streams.to_device, device.AddStream());
    MP_ASSIGN_OR_RETURN(streams.host, device.AddStream());
  }
  if (options.pipeline > 1) {
    MP_ASSIGN_OR_RETURN(streams.stage_activations, device.AddStream());
    MP_ASSIGN_OR_RETURN(streams.stage_gradients, device.AddStream());
  }
  return streams;
}

StreamId DeviceStreams::Of(plan::Stream stream) const {
  switch (stream) {
    case plan::Stream::kCompute:
      return compute;
    case plan::Stream::kCommunication:
      return communication;
    case plan::Stream::kToHost:
      return to_host;
    case plan::Stream::kToDevice:
      return to_device;
    case plan::Stream::kStageActivations:
      return stage_activations;
    case plan::Stream::kStageGradients:
      return stage_gradients;
    default:
      return host;
  }
}

absl::StatusOr<std::unique_ptr<DeviceExecutor>> DeviceExecutor::Create(
    const plan::StepPlan& plan, const plan::Program& program, Backend* backend, Device* device,
    const DeviceStreams& streams, char* arena, const HostSide& host) {
  auto executor = std::unique_ptr<DeviceExecutor>(new DeviceExecutor(device, streams));
  MP_RETURN_IF_ERROR(executor->AddJoined(program));
  MP_RETURN_IF_ERROR(executor->Bind(plan, program, backend, arena, host));
  return executor;
}

// Computation and communication always; the others where the program uses them.
absl::Status DeviceExecutor::AddJoined(const plan::Program& program) {
  for (int s = 0; s < plan::kStreams; ++s) {
    const auto stream = static_cast<plan::Stream>(s);
    const bool used = std::any_of(program.ops.begin(), program.ops.end(),
                                  [&](const plan::PlannedOp& op) { return op.stream == stream; });
    if (!used && stream != plan::Stream::kCompute && stream != plan::Stream::kCommunication) {
      continue;
    }
    MP_CHECK(streams_.Of(stream) >= 0) << "no stream for " << plan::Name(stream);
    if (plan::IsDisk(stream)) continue;  // in the host's, which has the updates between
    MP_ASSIGN_OR_RETURN(const EventId end, device_->AddEvent());
    joined_.push_back({streams_.Of(stream), end});
  }
  return absl::OkStatus();
}

absl::Status DeviceExecutor::Bind(const plan::StepPlan& plan, const plan::Program& program,
                                  Backend* backend, char* arena, const HostSide& host) {
  numbers_ = host.numbers;
  std::set<graph::ValueId> read;
  section_of_ = SectionsOf(program);
  thunks_.resize(program.ops.size());
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const plan::PlannedOp& op = program.ops[i];
    const OpBinding binding = {plan, program, op, arena, host.rank, host.host_arena};
    Thunk& thunk = thunks_[i];
    thunk.planned = &op;
    thunk.stream = streams_.Of(op.stream);
    thunk.name = absl::StrCat("op ", i, " (", graph::Name(op.op.kind), ")");
    thunk.accesses = AccessesOf(binding);
    for (const graph::ValueId value : HostNumbers::NeededFor(op.op)) {
      if (!read.insert(value).second) continue;
      if (numbers_ == nullptr) {
        return absl::InternalError(
            absl::StrCat(thunk.name, ": no place for what the host must know"));
      }
      thunk.numbers.push_back(numbers_->CopyOf(program, value, binding.ValueAt(value)));
    }
    if (IsOffloadCopy(op.op.kind)) {
      thunk.copy = OffloadCopyOf(binding);
    } else {
      absl::StatusOr<BoundOp> bound = backend->Bind(plan, program, op);
      if (!bound.ok()) return Annotate(bound.status(), thunk.name);
      thunk.run = *std::move(bound);
    }
    if (op.stream == plan::Stream::kHost || plan::IsDisk(op.stream)) {
      thunk.host = {.issue = [this, &thunk] { return thunk.run(host_context_); },
                    .name = thunk.name,
                    .accesses = thunk.accesses};
    }
    for (const int32_t before : op.wait_for) {
      MP_CHECK(program.ops[before].stream != op.stream && before < static_cast<int32_t>(i));
      if (thunks_[before].stream == thunk.stream) continue;  // the host's, and the disk's
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
  const Section theirs = section_of_[IndexOf(before)];
  if (theirs != section) return section == Section::kReduce;
  return before.planned->when != plan::When::kLastMicroStep || context.last_micro_step;
}

absl::Status DeviceExecutor::EnqueueWork(const Thunk& thunk, const StepContext& context) {
  if (thunk.copy.bytes > 0) {
    return device_->Copy(thunk.stream, thunk.copy.to, thunk.copy.from, thunk.copy.bytes);
  }
  if (thunk.host.issue) return device_->EnqueueHost(thunk.stream, thunk.host);
  return device_->Enqueue(thunk.stream, {.issue = [&thunk, context] { return thunk.run(context); },
                                         .name = thunk.name,
                                         .accesses = thunk.accesses});
}

absl::Status DeviceExecutor::EnqueueHeld(StreamId stream, int32_t last, const Enqueuing& now) {
  const auto next = [&] {
    return std::find_if(held_.begin(), held_.end(),
                        [&](int32_t op) { return thunks_[op].stream == stream && op <= last; });
  };
  for (auto held = next(); held != held_.end(); held = next()) {
    const Thunk& thunk = thunks_[*held];
    held_.erase(held);
    MP_RETURN_IF_ERROR(EnqueueOp(thunk, now));
  }
  return absl::OkStatus();
}

absl::Status DeviceExecutor::EnqueueOp(const Thunk& thunk, const Enqueuing& now) {
  const StreamId stream = thunk.stream;
  const int32_t op = IndexOf(thunk);
  const auto must_wait = [&](int32_t before) {
    return MustWait(thunks_[before], now.section, now.context);
  };
  MP_RETURN_IF_ERROR(EnqueueHeld(stream, op, now));
  for (const int32_t before : thunk.waits_for) {
    if (must_wait(before)) MP_RETURN_IF_ERROR(EnqueueHeld(thunks_[before].stream, before, now));
  }
  const bool waits = std::any_of(thunk.waits_for.begin(), thunk.waits_for.end(), must_wait);
  if (now.timer != nullptr) MP_RETURN_IF_ERROR(now.timer->BeforeWaits(op, stream, waits));
  for (const int32_t before : thunk.waits_for) {
    if (must_wait(before)) MP_RETURN_IF_ERROR(device_->Wait(stream, thunks_[before].event));
  }
  if (!thunk.numbers.empty()) {
    MP_RETURN_IF_ERROR(numbers_->Read(*device_, stream, thunk.numbers));
  }
  if (now.timer != nullptr) MP_RETURN_IF_ERROR(now.timer->BeforeOp(op, stream));
  MP_RETURN_IF_ERROR(EnqueueWork(thunk, now.context));
  return thunk.event < 0 ? absl::OkStatus() : device_->Record(thunk.event, stream);
}

absl::Status DeviceExecutor::Join() {
  for (const Joined& joined : joined_) {
    MP_RETURN_IF_ERROR(device_->Record(joined.end, joined.stream));
  }
  for (const Joined& waiting : joined_) {
    for (const Joined& other : joined_) {
      if (other.stream == waiting.stream) continue;
      MP_RETURN_IF_ERROR(device_->Wait(waiting.stream, other.end));
    }
  }
  return absl::OkStatus();
}

absl::Status DeviceExecutor::Run(Section section, const StepContext& context, PieceTimer* timer) {
  const Enqueuing now{.section = section, .context = context, .timer = timer};
  held_.clear();
  for (size_t i = 0; i < thunks_.size(); ++i) {
    if (section_of_[i] != section) continue;
    const bool last_only = thunks_[i].planned->when == plan::When::kLastMicroStep;
    if (last_only && !context.last_micro_step) continue;
    if (thunks_[i].planned->op.kind == graph::OpKind::kStageReceive) {
      held_.push_back(static_cast<int32_t>(i));
      continue;
    }
    MP_RETURN_IF_ERROR(EnqueueOp(thunks_[i], now));
  }
  while (!held_.empty()) {
    MP_RETURN_IF_ERROR(EnqueueHeld(thunks_[held_.front()].stream, held_.front(), now));
  }
  if (section == Section::kMicroStep && context.last_micro_step) return absl::OkStatus();
  if (timer != nullptr) MP_RETURN_IF_ERROR(timer->BeforeJoin());
  return Join();
}

absl::StatusOr<GraphId> DeviceExecutor::Capture(absl::Span<const Section> sections,
                                                const StepContext& context, PieceTimer* timer) {
  const Joined& compute = joined_.front();
  MP_RETURN_IF_ERROR(device_->BeginCapture(compute.stream));
  // So that work of the other streams that waits for none of this one's is captured too.
  MP_RETURN_IF_ERROR(device_->Record(compute.end, compute.stream));
  for (size_t i = 1; i < joined_.size(); ++i) {
    MP_RETURN_IF_ERROR(device_->Wait(joined_[i].stream, compute.end));
  }
  for (const Section section : sections) {
    MP_RETURN_IF_ERROR(Run(section, context, timer));
  }
  MP_RETURN_IF_ERROR(Join());
  // The capture ends with one stream: the others' waits of the join are its work too.
  for (size_t i = 1; i < joined_.size(); ++i) {
    MP_RETURN_IF_ERROR(device_->Record(joined_[i].end, joined_[i].stream));
    MP_RETURN_IF_ERROR(device_->Wait(compute.stream, joined_[i].end));
  }
  return device_->EndCapture(compute.stream);
}

absl::Status DeviceExecutor::Launch(GraphId graph) {
  MP_RETURN_IF_ERROR(device_->Launch(graph, joined_.front().stream));
  return Join();
}

absl::Status DeviceExecutor::Synchronize(absl::Duration timeout) {
  for (const Joined& joined : joined_) {
    MP_RETURN_IF_ERROR(device_->Synchronize(joined.stream, timeout));
  }
  return absl::OkStatus();
}

}  // namespace milepost::runtime
