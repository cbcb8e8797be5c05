#include "engine/plan/snapshot_bytes.h"

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

}  // namespace milepost::plan
