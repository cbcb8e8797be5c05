#include "engine/plan/required_bytes.h"

#include "engine/plan/cuda_beside.h"
#include "engine/plan/memory_pass.h"

namespace milepost::plan {

int64_t SnapshotBytes(const StepPlan& plan) {
  int64_t bytes = 0;
  for (const FlatGroup& group : plan.groups) {
    const int64_t elements = group.padded_elements / plan.options.world;
    for (const GroupState& state : StatesOf(group)) {
      bytes += elements / state.elements_per_item * graph::ByteSize(state.dtype);
    }
  }
  return bytes;
}

int64_t HostBytes(const StepPlan& plan) {
  if (!plan.options.Offloads()) return SnapshotBytes(plan);
  const bool draft = plan.host_arena_bytes == 0;
  return SnapshotBytes(plan) + (draft ? LeastBytes(plan, Memory::kHost) : plan.host_arena_bytes);
}

int64_t RequiredBytes(const StepPlan& plan, int64_t arena_bytes, bool arena_in_host_memory) {
  return arena_bytes + CudaBesideBytes(plan) + (arena_in_host_memory ? HostBytes(plan) : 0);
}

}  // namespace milepost::plan
