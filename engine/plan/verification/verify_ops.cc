// Verification, part 2: each op's operands by themselves.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/dtype/nf4.h"
#include "engine/plan/accesses.h"
#include "engine/plan/scalings.h"
#include "engine/plan/statistics.h"
#include "engine/plan/verification/verify.h"
#include "engine/plan/workspace.h"

namespace milepost::plan {
namespace {

using graph::kNoValue;
using graph::ValueId;

class OpVerifier {
 public:
  OpVerifier(const StepPlan& plan, const Program& program, int32_t index)
      : plan_(plan), program_(program), planned_(program.ops[index]), index_(index) {}

  absl::Status Run() const {
    MP_RETURN_IF_ERROR(CheckWaits());
    MP_RETURN_IF_ERROR(CheckOperands());
    MP_RETURN_IF_ERROR(CheckGather());
    MP_RETURN_IF_ERROR(CheckUnpack());
    MP_RETURN_IF_ERROR(CheckAccesses());
    MP_RETURN_IF_ERROR(CheckMemories());
    MP_RETURN_IF_ERROR(CheckWorkspace());
    MP_RETURN_IF_ERROR(CheckDisk());
    for (size_t i = 0; i < planned_.op.outputs.size(); ++i) {
      if (planned_.op.outputs[i].value != kNoValue) MP_RETURN_IF_ERROR(CheckOutput(i));
    }
    return absl::OkStatus();
  }

 private:
  template <typename... Parts>
  absl::Status Violation(const Parts&... parts) const {
    return absl::InternalError(
        absl::StrCat("op ", index_, " (", graph::Name(planned_.op.kind), "): ", parts...));
  }
  const std::string& NameOf(ValueId id) const { return program_.graph.values[id].name; }

  struct Range {
    int64_t begin;
    int64_t end;
    bool Overlaps(const Range& other) const { return begin < other.end && other.begin < end; }
    bool operator==(const Range&) const = default;
  };
  Range InArena(const Access& access) const {
    const int64_t base = plan_.AddressOf(access.buffer);
    return {base + access.begin, base + access.end};
  }
  Range InArena(ValueId id) const { return InArena(ValueAccess(program_, id, false)); }

  absl::Status CheckWaits() const {
    for (int32_t wait : planned_.wait_for) {
      if (wait < 0 || wait >= index_)
        return Violation("waits for op ", wait, ", not an earlier one");
      if (program_.ops[wait].stream == planned_.stream) {
        return Violation("waits for op ", wait, " of its own stream");
      }
      if (IsDisk(program_.ops[wait].stream) && !MayWaitForDisk(program_.ops[wait].stream)) {
        return Violation("waits for op ", wait,
                         " of the disk, which only the host's update of the same turn can");
      }
    }
    return absl::OkStatus();
  }

  bool MayWaitForDisk(Stream disk) const {
    const int32_t group = planned_.op.attributes.group;
    return planned_.stream == Stream::kHost && planned_.op.kind == graph::OpKind::kOptimizer &&
           group >= 0 && DiskStream(plan_.groups[group].disk_turn) == disk;
  }

  // What is read and written is on the stream of its group's turn, and nothing else is.
  absl::Status CheckDisk() const {
    const graph::OpKind kind = planned_.op.kind;
    const bool transfer = kind == graph::OpKind::kReadState || kind == graph::OpKind::kWriteState;
    const int32_t group = planned_.op.attributes.group;
    if (transfer != IsDisk(planned_.stream) ||
        (transfer && (group < 0 || group >= static_cast<int32_t>(plan_.groups.size()) ||
                      planned_.stream != DiskStream(plan_.groups[group].disk_turn)))) {
      return Violation("is not on its stream");
    }
    return absl::OkStatus();
  }

  // Only parameters that are sharded have no place: nobody may use them but by gathering.
  absl::Status CheckOperands() const {
    const auto placed = [&](ValueId id) {
      return id == kNoValue || program_.places[id].buffer != kNoBuffer;
    };
    for (ValueId input : planned_.op.inputs) {
      if (!placed(input)) return Violation("reads ", NameOf(input), ", which is sharded");
    }
    for (const graph::Output& output : planned_.op.outputs) {
      if (!placed(output.value)) return Violation("writes ", NameOf(output.value));
    }
    return absl::OkStatus();
  }

  // Gathered parameters lie in one buffer just as in their flat group.
  absl::Status CheckGather() const {
    if (planned_.op.kind != graph::OpKind::kGatherParameters || planned_.op.outputs.empty()) {
      return absl::OkStatus();
    }
    const int32_t index = planned_.op.attributes.group;
    if (index < 0 || index >= static_cast<int32_t>(plan_.groups.size()) ||
        planned_.op.outputs.size() != plan_.groups[index].parameters.size()) {
      return Violation("does not gather a whole flat group");
    }
    const FlatGroup& group = plan_.groups[index];
    const int64_t size = ByteSize(group.parameter_dtype);
    const BufferId buffer = program_.places[planned_.op.outputs[0].value].buffer;
    if (plan_.buffers[buffer].bytes != group.padded_elements * size) {
      return Violation("gathers ", group.name, " into ", plan_.buffers[buffer].bytes, " bytes");
    }
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      const ValueId output = planned_.op.outputs[i].value;
      const Place& place = program_.places[output];
      if (place.buffer != buffer || place.offset != group.parameters[i].begin * size ||
          program_.graph.values[output].shape != group.parameters[i].shape) {
        return Violation("does not gather ", group.parameters[i].name, " as it lies in its group");
      }
    }
    return absl::OkStatus();
  }

  // Packed matrices, and as many bytes as their elements take.
  absl::Status CheckUnpack() const {
    if (planned_.op.kind != graph::OpKind::kUnpackNf4) return absl::OkStatus();
    const graph::Op& op = planned_.op;
    if (op.inputs.empty() || op.inputs.size() != op.outputs.size()) {
      return Violation("does not unpack each of its inputs");
    }
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const graph::Value& packed = program_.graph.values[op.inputs[i]];
      const graph::Value& unpacked = program_.graph.values[op.outputs[i].value];
      if (packed.dtype != DType::kU8 || unpacked.dtype != plan_.options.compute_dtype ||
          graph::Elements(packed.shape) != Nf4Bytes(graph::Elements(unpacked.shape))) {
        return Violation("unpacks ", NameOf(op.inputs[i]), ", which has other bytes");
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckAccesses() const {
    const std::vector<Access> expected = OpAccesses(plan_, program_, planned_);
    for (const Access& access : expected) {
      if (access.begin < 0 || access.end > plan_.buffers[access.buffer].bytes) {
        return Violation("reaches outside ", plan_.buffers[access.buffer].name);
      }
    }
    const auto same = [](const Access& a, const Access& b) {
      return a.buffer == b.buffer && a.begin == b.begin && a.end == b.end && a.write == b.write;
    };
    if (!std::equal(expected.begin(), expected.end(), planned_.accesses.begin(),
                    planned_.accesses.end(), same)) {
      return Violation("its recorded accesses are not those of its operands");
    }
    return absl::OkStatus();
  }

  // A device's kernels reach their own memory, the host its own; copies read the one and write the
  // other.
  absl::Status CheckMemories() const {
    const Stream stream = planned_.stream;
    const bool host = stream == Stream::kHost || IsDisk(stream);
    const Memory reads = host || stream == Stream::kToDevice ? Memory::kHost : Memory::kDevice;
    const Memory writes = host || stream == Stream::kToHost ? Memory::kHost : Memory::kDevice;
    for (const Access& access : planned_.accesses) {
      const Buffer& buffer = plan_.buffers[access.buffer];
      if (buffer.memory == (access.write ? writes : reads)) continue;
      return Violation("on the stream ", Name(stream), " it cannot ",
                       access.write ? "write " : "read ", buffer.name);
    }
    return absl::OkStatus();
  }

  absl::Status CheckWorkspace() const {
    const int64_t needed = WorkspaceBytes(program_.graph, plan_.groups, planned_.op, plan_.options);
    if (planned_.workspace_bytes < needed || (needed > 0 && planned_.workspace == kNoBuffer)) {
      return Violation("has ", planned_.workspace_bytes, " bytes of workspace, needs ", needed);
    }
    if (planned_.workspace == kNoBuffer) return absl::OkStatus();
    const Range workspace = InArena({planned_.workspace, 0, planned_.workspace_bytes, true});
    for (size_t i = 0; i + 1 < planned_.accesses.size(); ++i) {
      if (workspace.Overlaps(InArena(planned_.accesses[i]))) {
        return Violation("its workspace overlaps ",
                         plan_.buffers[planned_.accesses[i].buffer].name);
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckOutput(size_t position) const {
    const graph::Output& output = planned_.op.outputs[position];
    const Range range = InArena(output.value);
    for (ValueId input : planned_.op.inputs) {
      if (input == kNoValue || input == output.value || !range.Overlaps(InArena(input))) continue;
      if (input == output.may_overwrite && range == InArena(input)) continue;
      return Violation("writes ", NameOf(output.value), " over its input ", NameOf(input));
    }
    for (size_t i = 0; i < position; ++i) {
      const ValueId other = planned_.op.outputs[i].value;
      if (other != kNoValue && range.Overlaps(InArena(other))) {
        return Violation("its outputs ", NameOf(output.value), " and ", NameOf(other), " overlap");
      }
    }
    return absl::OkStatus();
  }

  const StepPlan& plan_;
  const Program& program_;
  const PlannedOp& planned_;
  const int32_t index_;
};

// Values that some op has: what was frozen or made once more leaves others behind.
std::vector<bool> UsedValues(const Program& program) {
  std::vector<bool> used(program.graph.values.size(), false);
  for (const PlannedOp& planned : program.ops) {
    for (ValueId input : planned.op.inputs) {
      if (input != kNoValue) used[input] = true;
    }
    for (const graph::Output& output : planned.op.outputs) {
      if (output.value != kNoValue) used[output.value] = true;
    }
  }
  return used;
}

absl::Status VerifyPlaces(const StepPlan& plan, const Program& program) {
  const graph::Graph& graph = program.graph;
  if (program.places.size() != graph.values.size()) {
    return absl::InternalError("not every value has a place");
  }
  const auto buffers = static_cast<BufferId>(plan.buffers.size());
  std::vector<bool> used = UsedValues(program);
  for (const FlatGroup& group : plan.groups) {
    if (!group.ShardsParameters(plan.options)) continue;
    for (const GroupParameter& p : group.parameters) {
      used[graph.parameters[p.parameter].value] = false;  // what is gathered is
    }
  }
  for (size_t id = 0; id < graph.values.size(); ++id) {
    if (!used[id]) continue;
    if (program.places[id].buffer < 0 || program.places[id].buffer >= buffers) {
      return absl::InternalError(absl::StrCat(graph.values[id].name, " has no buffer"));
    }
  }
  const StatisticsLayout layout = LayOutStatistics(graph);
  for (size_t i = 0; i < layout.offsets.size(); ++i) {
    const Place& place = program.places[graph.statistics[i].value];
    if (place.buffer == plan.statistics && place.offset == layout.offsets[i]) continue;
    return absl::InternalError(absl::StrCat(graph.values[graph.statistics[i].value].name,
                                            " does not lie among the running statistics"));
  }
  for (size_t i = 0; i < graph.scalings.size(); ++i) {
    const Place& scaling = program.places[graph.scalings[i].scaling];
    const Place& amax = program.places[graph.scalings[i].amax];
    const auto at = static_cast<int64_t>(i);
    if (scaling.buffer == plan.scalings && scaling.offset == at * kScalingBytes &&
        amax.buffer == plan.amaxes && amax.offset == at * kAmaxBytes) {
      continue;
    }
    return absl::InternalError(absl::StrCat(graph.values[graph.scalings[i].scaling].name,
                                            " does not lie among the scalings"));
  }
  for (const FlatGroup& group : plan.groups) {
    const bool sharded = group.ShardsParameters(plan.options);
    for (const GroupParameter& p : group.parameters) {
      const graph::Parameter& parameter = graph.parameters[p.parameter];
      const Place& place = program.places[parameter.value];
      const int64_t size = ByteSize(group.parameter_dtype);
      bool ok = sharded ? place.buffer == kNoBuffer
                        : place.buffer == group.parameter_buffer && place.offset == p.begin * size;
      if (parameter.gradient != kNoValue) {
        const Place& gradient = program.places[parameter.gradient];
        ok = ok && gradient.buffer == group.gradient_buffer && gradient.offset == p.begin * 4;
      }
      if (!ok) return absl::InternalError(absl::StrCat(p.name, " does not lie in its flat group"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifyOps(const StepPlan& plan, const Program& program) {
  if (program.ops.empty()) return absl::OkStatus();
  MP_RETURN_IF_ERROR(VerifyPlaces(plan, program));
  for (int32_t i = 0; i < static_cast<int32_t>(program.ops.size()); ++i) {
    MP_RETURN_IF_ERROR(OpVerifier(plan, program, i).Run());
  }
  return absl::OkStatus();
}

}  // namespace milepost::plan
