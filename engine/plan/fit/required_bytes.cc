#include "engine/plan/fit/required_bytes.h"

#include <algorithm>

#include "engine/plan/cuda_beside.h"
#include "engine/plan/passes/memory_pass.h"

namespace milepost::plan {

namespace {

// Of the optimizer's states: a rank's shard, or what it saves of it and of what other tensor ranks
// have alike.
int64_t StateBytes(const StepPlan& plan, bool saved) {
  int64_t bytes = 0;
  for (const FlatGroup& group : plan.groups) {
    if (group.base) continue;
    const int alike = group.Alike(plan.options) * plan.options.islands;
    const int parts = saved ? group.Ranks(plan.options) * alike : group.Shards(plan.options);
    const int64_t elements = group.padded_elements / parts;
    for (const GroupState& state : StatesOf(group)) {
      bytes += elements / state.elements_per_item * ByteSize(state.dtype);
    }
  }
  return bytes;
}

// Right factors that outlive a step.
bool HasKeptFactors(const StepPlan& plan, const FlatGroup& group) {
  return group.Compressed() && plan.buffers[group.right_buffer].persistent;
}

// One rank saves all of them.
int64_t FactorBytes(const StepPlan& plan) {
  int64_t bytes = 0;
  for (const FlatGroup& group : plan.groups) {
    if (HasKeptFactors(plan, group)) bytes += plan.buffers[group.right_buffer].bytes;
  }
  return bytes;
}

}  // namespace

int64_t CheckpointBytes(const StepPlan& plan) {
  if (plan.options.pipeline == 1) {
    const int64_t factors = FactorBytes(plan);
    return (SnapshotBytes(plan) - factors) * plan.options.AllRanks() + factors;
  }
  int64_t bytes = 0;
  for (const std::vector<FlatGroup>* groups : {&plan.groups, &plan.elsewhere}) {
    for (const FlatGroup& group : *groups) {
      const int64_t elements =
          group.padded_elements * (plan.options.tensor / group.Alike(plan.options));
      for (const GroupState& state : StatesOf(group)) {
        bytes += elements / state.elements_per_item * ByteSize(state.dtype);
      }
    }
  }
  return bytes;
}

int64_t SnapshotBytes(const StepPlan& plan) {
  return StateBytes(plan, /*saved=*/true) + FactorBytes(plan);
}

namespace {

// Of a group: its states, and its parameters if they are asked for or are the only copy of a state.
// A group's first state is its master copy.
void AddState(const StepPlan& plan, const FlatGroup& group, bool parameters, bool master_alone,
              std::vector<BufferId>* state) {
  std::vector<GroupState> kinds = StatesOf(group);
  if (master_alone) kinds.resize(std::min<size_t>(kinds.size(), 1));
  for (const GroupState& kind : kinds) {
    if (kind.buffer == kNoBuffer) {
      parameters = true;
    } else if (plan.buffers[kind.buffer].memory == Memory::kDevice) {
      state->push_back(kind.buffer);
    }
  }
  if (!master_alone && HasKeptFactors(plan, group)) state->push_back(group.right_buffer);
  if (parameters) state->push_back(group.parameter_buffer);
}

std::vector<BufferId> OnDevice(const StepPlan& plan, bool with_parameters, bool base,
                               bool master_alone) {
  std::vector<BufferId> state;
  for (const FlatGroup& group : plan.groups) {
    if (!group.base || base) AddState(plan, group, with_parameters, master_alone, &state);
  }
  if (plan.statistics != kNoBuffer) state.push_back(plan.statistics);
  if (plan.scalings != kNoBuffer) state.push_back(plan.scalings);
  return state;
}

}  // namespace

std::vector<BufferId> StateOnDevice(const StepPlan& plan, bool with_parameters, bool base) {
  return OnDevice(plan, with_parameters, base, /*master_alone=*/false);
}

std::vector<BufferId> InitialisedOnDevice(const StepPlan& plan) {
  return OnDevice(plan, /*with_parameters=*/true, /*base=*/true, /*master_alone=*/true);
}

namespace {

// On a GPU; the CPU's engine has none.
int64_t MirrorBytes(const StepPlan& plan, bool start) {
  if (plan.options.device != DeviceKind::kCuda) return 0;
  int64_t bytes = 0;
  for (const BufferId id : StateOnDevice(plan, start, start)) bytes += plan.buffers[id].bytes;
  return bytes;
}

// What tensor ranks divide is put together to be saved (runtime/session/divided_rows.h): rows, at
// most as many bytes as the rank has of it, and what comes of the largest tensor.
int64_t DividedRowsBytes(const StepPlan& plan) {
  int64_t rows = 0, largest = 0;
  for (const FlatGroup& group : plan.groups) {
    if (!group.divided) continue;
    const int64_t elements = group.padded_elements / (plan.options.world * plan.options.islands);
    for (const GroupState& state : StatesOf(group)) rows += elements * ByteSize(state.dtype);
    for (const GroupParameter& p : group.parameters) {
      largest = std::max(largest, std::min(p.elements, elements) * ByteSize(DType::kF32));
    }
  }
  return rows + largest;
}

// At the start, which has no copy yet, or while it saves a checkpoint.
int64_t CopyBytes(const StepPlan& plan) {
  const int64_t copy = plan.options.offload_disk ? 0 : SnapshotBytes(plan) + DividedRowsBytes(plan);
  return std::max(MirrorBytes(plan, true), MirrorBytes(plan, false) + copy);
}

}  // namespace

int64_t HostBytes(const StepPlan& plan) {
  const int64_t copies =
      CopyBytes(plan) + plan.options.state_copies * StateBytes(plan, /*saved=*/false);
  if (!plan.options.Offloads()) return copies;
  const bool draft = plan.host_arena_bytes == 0;
  return copies + (draft ? LeastBytes(plan, Memory::kHost) : plan.host_arena_bytes);
}

int64_t DiskBytesNeeded(const StepPlan& plan) {
  return plan.options.offload_disk ? plan.disk_bytes + SnapshotBytes(plan) : 0;
}

int64_t RequiredBytes(const StepPlan& plan, int64_t arena_bytes, bool arena_in_host_memory) {
  return arena_bytes + CudaBesideBytes(plan) + (arena_in_host_memory ? HostBytes(plan) : 0);
}

}  // namespace milepost::plan
