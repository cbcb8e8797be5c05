// What a rank needs of the memory that its arena lies in. A checkpoint takes host memory beside the
// arena: a rank copies what it saves, goes on training, and streams the copy away.
//
//   const int64_t at_the_peak = RequiredBytes(plan, plan.arena_bytes, in_host_memory);
#ifndef MILEPOST_ENGINE_PLAN_FIT_REQUIRED_BYTES_H_
#define MILEPOST_ENGINE_PLAN_FIT_REQUIRED_BYTES_H_

#include <cstdint>
#include <vector>

#include "engine/plan/step_plan.h"

namespace milepost::plan {

// The copy of one rank's part of a checkpoint, in host memory; padding included, running statistics
// (a few kB of a ResNet) not. Pure. Drafts of plans will do.
int64_t SnapshotBytes(const StepPlan& plan);

// Of a whole checkpoint, likewise.
int64_t CheckpointBytes(const StepPlan& plan);

// What of a device's memory a rank's state is, which a GPU's engine copies to and from host memory
// of its own (StepEngine::mirror): for a checkpoint, and, with the parameters, to the device.
// `base`: with what adapters adapt, which is no state, but goes to the device at the start.
std::vector<BufferId> StateOnDevice(const StepPlan& plan, bool with_parameters, bool base);

// What of it is not zeros before the first step: no m and v.
std::vector<BufferId> InitialisedOnDevice(const StepPlan& plan);

// What a rank needs of its host's memory, whatever its device: that copy, those that
// checkpoint.redundancy has there all the time, and what is offloaded; on a GPU, where the copy is
// made of the engine's, that too. Where states are on disk the copy is a file there.
int64_t HostBytes(const StepPlan& plan);

// What a rank needs of its host's disk: states and that copy. 0: nothing.
int64_t DiskBytesNeeded(const StepPlan& plan);

// `arena_bytes`, on a GPU what lies beside it (cuda_beside.h), and HostBytes where the arena lies
// in the same memory.
int64_t RequiredBytes(const StepPlan& plan, int64_t arena_bytes, bool arena_in_host_memory);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_FIT_REQUIRED_BYTES_H_
