#include "engine/runtime/gpu/device/host_numbers.h"

#include "common/check.h"
#include "common/status_macros.h"
#include "engine/ops/expert_parallel/expert_parallel.h"

namespace milepost::runtime {
namespace {

int64_t BytesOf(const plan::Program& program, graph::ValueId value) {
  const graph::Value& v = program.graph.values[value];
  return graph::Elements(v.shape) * ByteSize(v.dtype);
}

}  // namespace

std::vector<graph::ValueId> HostNumbers::NeededFor(const graph::Op& op) {
  if (!ops::IsRowsExchange(op.kind)) return {};
  return {op.inputs[1], op.inputs[2]};
}

absl::StatusOr<HostNumbers> HostNumbers::Make(absl::Span<const plan::Program* const> programs) {
  constexpr int64_t kLine = 64;
  HostNumbers numbers;
  for (const plan::Program* program : programs) {
    for (const plan::PlannedOp& planned : program->ops) {
      for (const graph::ValueId value : NeededFor(planned.op)) {
        if (!numbers.places_.emplace(Key{program, value}, numbers.bytes_).second) continue;
        numbers.bytes_ += (BytesOf(*program, value) + kLine - 1) / kLine * kLine;
      }
    }
  }
  if (numbers.empty()) return numbers;
  MP_ASSIGN_OR_RETURN(numbers.memory_, HostMirror::Make(numbers.bytes_));
  return numbers;
}

absl::Status HostNumbers::Pin(Device& device) {
  if (empty()) return absl::OkStatus();
  const absl::Status status = memory_->Pin(device, {{0, bytes_}});
  pinned_ = status.ok();
  return status;
}

char* HostNumbers::PlaceOf(const plan::Program& program, graph::ValueId value) const {
  const auto place = places_.find({&program, value});
  MP_CHECK(place != places_.end()) << "no place for value " << value;
  return memory_->data() + place->second;
}

const int32_t* HostNumbers::Of(const plan::Program& program, graph::ValueId value) const {
  return reinterpret_cast<const int32_t*>(PlaceOf(program, value));
}

HostNumbers::Copy HostNumbers::CopyOf(const plan::Program& program, graph::ValueId value,
                                      const char* made) const {
  return {PlaceOf(program, value), made, BytesOf(program, value)};
}

absl::Status HostNumbers::Read(Device& device, StreamId stream,
                               absl::Span<const Copy> copies) const {
  // A copy to other memory may block within the driver, where nobody looks for a peer that is gone.
  if (!pinned_) MP_RETURN_IF_ERROR(wait_(stream));
  for (const Copy& copy : copies) {
    MP_RETURN_IF_ERROR(device.Copy(stream, copy.to, copy.from, copy.bytes));
  }
  return wait_(stream);
}

}  // namespace milepost::runtime
