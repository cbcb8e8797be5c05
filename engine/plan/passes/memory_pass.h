// Gives every buffer its offset in its arena.
//
//   // buffers, accesses and streams of all programs are set:
//   MP_RETURN_IF_ERROR(AssignOffsets(plan));
//
// Persistent buffers come first, each with bytes of its own. The others share what follows: within
// a program by liveness (from the first access to the last; an access by an op of another stream
// reaches until the compute stream has waited for it), between programs freely, as they never run
// at once. Sets offset, arena_bytes, bytes_by_class and slack_bytes, and those of the host's arena.
#ifndef MILEPOST_ENGINE_PLAN_PASSES_MEMORY_PASS_H_
#define MILEPOST_ENGINE_PLAN_PASSES_MEMORY_PASS_H_

#include <vector>

#include "absl/status/status.h"
#include "engine/plan/planning.h"
#include "engine/plan/step_plan.h"

namespace milepost::plan {

// Positions in program order, both included, at which a buffer's bytes are in use.
struct Lifetime {
  BufferId buffer = kNoBuffer;
  int32_t first = 0;
  int32_t last = 0;
};
// Of the program's buffers that are not persistent.
std::vector<Lifetime> LifetimesOf(const StepPlan& plan, const Program& program);

// Never fails but by `planning`, where it is given.
absl::Status AssignOffsets(StepPlan& plan, Planning* planning = nullptr);

// What AssignOffsets cannot go below: persistent buffers and the fullest moment of a program. Needs
// what it needs, in a fraction of its time.
int64_t LeastBytes(const StepPlan& plan, Memory memory = Memory::kDevice);

// Bytes of activations on the device at the training program's fullest moment of those.
int64_t PeakActivationBytes(const StepPlan& plan);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PASSES_MEMORY_PASS_H_
