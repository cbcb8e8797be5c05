// Puts ops on streams and adds the fewest waits that order them.
//
//   AddStreams(program, options);  // accesses are set
#ifndef MILEPOST_ENGINE_PLAN_STREAM_PASS_H_
#define MILEPOST_ENGINE_PLAN_STREAM_PASS_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "engine/plan/step_plan.h"

namespace milepost::plan {

// Collectives go to the communication stream where there are peers, the rest to the compute stream.
// An op waits, of each other stream, for the latest op that it conflicts with (or for its `after`),
// unless that has finished already by what is ordered before.
void AddStreams(Program& program, const PlanOptions& options);

// For each op, the index of the last op of each stream that has finished when it starts; -1: none.
// Within one micro-step (or the update), by stream order and wait_for.
struct FinishedBefore {
  FinishedBefore() { std::fill(std::begin(last), std::end(last), -1); }
  int32_t last[kStreams];
};
std::vector<FinishedBefore> OrderOf(const Program& program);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_STREAM_PASS_H_
