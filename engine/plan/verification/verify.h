// Proves a plan, with no device and without trusting the passes that made it.
//
//   MP_RETURN_IF_ERROR(plan::Verify(plan));
//
// Every program is unrolled for steps of one micro-step and, unless the plan is for one only, of
// three (first, middle, last), then:
//   - no two conflicting accesses without a happens-before path (stream order and wait_for);
//   - no read of a value before it is written, nor after its bytes were reused;
//   - every group's gradient is complete when it is reduced, reduced exactly once (world > 1; never
//     at world 1), then measured once, updated once after the scalars, and gathered once (stages 1
//     and 2); from stage 2 on it is started and reduced exactly once in every micro-step; with
//     replicas of shards these are reduced among them exactly once, after the last micro-step's;
//   - averages are made once a step, after the group's update; the programs that take them for the
//     parameters do so once for every group, and gather what the update would;
//   - where islands train apart, the shard of every trained group is kept before a round; in an
//     outer step its master and each of its states is summed over them once, then moved once, and
//     then gathered where ranks hold whole parameters;
//   - LAMB's norms and Muon's updates are made from the reduced gradient after the scalars,
//     exchanged exactly as often as the shards need, and there when the group is updated;
//   - stage 3: ops read parameters only where a gather has put them, from the gather on and until
//     their bytes are reused;
//   - gradients (or their shards) and step accumulators are started once a step and never lost
//     between micro-steps;
//   - what a tensor rank makes of a sum is only ever added up, and its own rows are never read as
//     if they were all;
//   - where context ranks divide sequences, attention has all tokens of its heads, and ops by token
//     never read such values;
//   - where expert ranks share out experts, these get the rows of all of the ranks, with room for
//     all, and nothing else reads them;
//   - caches are whole, added to once by every run of a program that generates, and the same
//     bytes in all of them;
//   - persistent buffers overlap nothing; every buffer lies inside the arena, aligned; operands of
//     an op overlap only where it may overwrite; workspaces are large enough; groups hold every
//     parameter once, padded as the stage needs; the byte counts add up, in the arena and on the
//     wire.
// Runs in time nearly linear in the number of ops; a 48-layer plan takes a few milliseconds.
#ifndef MILEPOST_ENGINE_PLAN_VERIFICATION_VERIFY_H_
#define MILEPOST_ENGINE_PLAN_VERIFICATION_VERIFY_H_

#include <vector>

#include "absl/status/status.h"
#include "engine/plan/step_plan.h"

namespace milepost::plan {

// INTERNAL with the first violation: the op, the value or the buffer, and why.
absl::Status Verify(const StepPlan& plan);

// How many micro-steps the program is unrolled for.
std::vector<int> UnrolledMicroSteps(const StepPlan& plan, const Program& program);

// The parts of it, each over plans whose earlier parts hold.
absl::Status VerifyLayout(const StepPlan& plan);                           // buffers, groups, bytes
absl::Status VerifyOps(const StepPlan& plan, const Program& program);      // operands, one by one
absl::Status VerifyValues(const StepPlan& plan, const Program& program);   // program order
absl::Status VerifyOrder(const StepPlan& plan, const Program& program);    // between streams
absl::Status VerifySums(const StepPlan& plan, const Program& program);     // among tensor ranks
absl::Status VerifyRows(const StepPlan& plan, const Program& program);     // among tensor ranks
absl::Status VerifyHeads(const StepPlan& plan, const Program& program);    // among context ranks
absl::Status VerifyExperts(const StepPlan& plan, const Program& program);  // among expert ranks
absl::Status VerifyExchange(const StepPlan& plan);                         // of averages
absl::Status VerifyOuter(const StepPlan& plan);                            // of islands
absl::Status VerifyWire(const StepPlan& plan);                             // bytes sent

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_VERIFICATION_VERIFY_H_
