// Puts ops on streams and adds the fewest waits that order them.
//
//   AddStreams(program, options);  // accesses are set
#ifndef MILEPOST_ENGINE_PLAN_PASSES_STREAM_PASS_H_
#define MILEPOST_ENGINE_PLAN_PASSES_STREAM_PASS_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "engine/plan/step_plan.h"

namespace milepost::plan {

// Collectives, and what follows one at once.
bool IsCommunication(graph::OpKind kind);

// Collectives go to the communication stream where there are peers, copies to and from the host to
// streams of their own, offloaded updates to the host's, the rest to the compute stream; what is on
// a stream of the disk stays there.
// An op waits, of each other stream, for the latest op that it conflicts with (or for its `after`),
// unless that has finished already by what is ordered before.
void AddStreams(Program& program, const PlanOptions& options);

// For each op, the index of the last op of each stream that has finished when it starts; -1: none.
// Within one micro-step (or the update), by stream order and wait_for.
struct FinishedBefore {
  FinishedBefore() { std::fill(std::begin(last), std::end(last), -1); }
  int32_t last[kStreams];
};
// In the last micro-step and the update, or in a micro-step before it: kLastMicroStep ops, and what
// only they have waited for, order nothing there.
std::vector<FinishedBefore> OrderOf(const Program& program, bool last_micro_step);

// Whether an op runs in such a micro-step, or in the update behind it.
inline bool Runs(const PlannedOp& op, bool last_micro_step) {
  return last_micro_step || op.when == When::kEveryMicroStep;
}

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PASSES_STREAM_PASS_H_
