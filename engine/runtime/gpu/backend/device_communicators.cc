#include "engine/runtime/gpu/backend/device_communicators.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace milepost::runtime {
namespace {

using plan::Stream;

constexpr Stream kStreamsOfStages[] = {Stream::kStageActivations, Stream::kStageGradients};

// One byte of the arena, each direction's own.
Collective ByteBetween(Collective::Kind kind, Stream stream, int ranks, int peer) {
  return {.kind = kind,
          .offset = stream == Stream::kStageActivations ? 0 : 1,
          .elements = 1,
          .dtype = DType::kU8,
          .among = {0, ranks, 1},
          .peer = peer};
}

}  // namespace

absl::Status DeviceCommunicators::Open(const plan::StepPlan& plan, const ConnectDevices& connect) {
  if (plan.options.AllRanks() == 1) return absl::OkStatus();
  const auto open = [&](Stream stream) -> absl::Status {
    MP_ASSIGN_OR_RETURN(of_stream_[static_cast<size_t>(stream)], connect(plan, stream));
    return absl::OkStatus();
  };
  MP_RETURN_IF_ERROR(open(Stream::kCommunication));
  if (plan.options.pipeline == 1) return absl::OkStatus();
  for (const Stream stream : kStreamsOfStages) MP_RETURN_IF_ERROR(open(stream));
  return absl::OkStatus();
}

std::vector<DeviceCommunicator*> DeviceCommunicators::All() const {
  std::vector<DeviceCommunicator*> all;
  for (const auto& each : of_stream_) {
    if (each != nullptr) all.push_back(each.get());
  }
  return all;
}

bool DeviceCommunicators::capturable() const {
  const std::vector<DeviceCommunicator*> all = All();
  return std::all_of(all.begin(), all.end(),
                     [](const DeviceCommunicator* each) { return each->capturable(); });
}

std::vector<std::string> DeviceCommunicators::Register(char* memory, int64_t bytes) {
  std::vector<std::string> notes;
  for (DeviceCommunicator* each : All()) {
    std::string note = each->Register(memory, bytes);
    if (note.empty() || std::find(notes.begin(), notes.end(), note) != notes.end()) continue;
    notes.push_back(std::move(note));
  }
  return notes;
}

absl::Status DeviceCommunicators::ConnectStages(const plan::StepPlan& plan, int rank, char* arena,
                                                Device* device, const DeviceStreams& streams,
                                                absl::Duration timeout) {
  const plan::PlanOptions& options = plan.options;
  if (options.pipeline == 1) return absl::OkStatus();
  const auto enqueue = [&](Collective::Kind kind, Stream stream, int peer_stage) {
    const int peer = rank + (peer_stage - options.stage) * options.tensor;
    const Collective call = ByteBetween(kind, stream, options.AllRanks(), peer);
    const char* byte = arena + call.offset;
    const StreamId id = streams.Of(stream);
    return device->Enqueue(
        id, {.issue =
                 [this, call, arena, stream, native = device->native_stream(id)] {
                   return Of(stream)->Enqueue(call, arena, nullptr, native);
                 },
             .name = absl::StrCat("connect (stage_",
                                  kind == Collective::Kind::kSend ? "send)" : "receive)"),
             .accesses = {{byte, byte + 1, kind == Collective::Kind::kReceive}}});
  };
  const bool ring = options.chunks > 1;  // the last run of a round hands on to the first stage
  for (const Stream stream : kStreamsOfStages) {
    const int step = stream == Stream::kStageActivations ? 1 : -1;
    const bool begins = options.stage == (step > 0 ? 0 : options.pipeline - 1);
    for (const bool sends : {begins, !begins}) {
      int peer = options.stage + (sends ? step : -step);
      if (ring) peer = (peer + options.pipeline) % options.pipeline;
      if (peer < 0 || peer >= options.pipeline) continue;
      const auto kind = sends ? Collective::Kind::kSend : Collective::Kind::kReceive;
      MP_RETURN_IF_ERROR(enqueue(kind, stream, peer));
    }
    MP_RETURN_IF_ERROR(device->Synchronize(streams.Of(stream), timeout));
  }
  return Health();
}

absl::Status DeviceCommunicators::Health() {
  for (const auto& each : of_stream_) {
    const absl::Status status = each == nullptr ? absl::OkStatus() : each->Health();
    if (status.ok()) continue;
    // What the failed one should have brought is missing: nothing is to be summed with it.
    Abort(status.message());
    return status;
  }
  return absl::OkStatus();
}

void DeviceCommunicators::Abort(absl::string_view reason) {
  for (DeviceCommunicator* each : All()) each->Abort(reason);
}

void DeviceCommunicators::Close() {
  for (auto& each : of_stream_) each.reset();
}

}  // namespace milepost::runtime
