// The ops that ZeRO adds to a training graph, for its flat groups (flat_groups.h).
//
//   plan.train.ops = MakeTrainingOps(graph, plan.groups, options);
//
// Frozen groups have no op but gathers. world 1: no communication. Stage 0: gradients are all-
// reduced, every rank updates everything. Stage 1: gradients are reduce-scattered, each rank
// updates its shard (master, m and v exist for the shard only) and the parameters are all-gathered.
// Stage 2: gradients are reduce-scattered in every micro-step and added to a shard, so a group's
// whole gradient is short-lived. Stage 3: no gather follows the update; gather_pass.h adds those
// before use. A group's reduction stands right after the op that completes its gradient, so it
// overlaps the rest of the backward; the gather after its update overlaps the next group's update.
// Where gradients are kept in bf16, at any stage, a group's is rounded right after its reduction
// (or, on one rank, its completion), so that its fp32 is short-lived. With hybrid sharding all of
// that happens within a group of ranks, and the step's reduced shards are then all-reduced among
// the replicas.
//
// Where gradients travel as factors (compression.h), a group's left factors are made and reduced
// when its gradient completes, its right factors when the next group's does, and its gradient of
// both when the one behind that does. On one rank the same is done without the exchange.
//
// Offloaded, a group's reduced gradient is copied to the host beside the rest of the backward and
// measured right after the next group's completes, so that its bytes come free; the host updates
// group after group once the scalars are there, and each one's parameters are copied back beside
// the next one's update. Where the states lie on disk, three groups' are read beside the last
// backward; then, while a group is updated, the one before it is written and the next but one read.
#ifndef MILEPOST_ENGINE_PLAN_PASSES_ZERO_PASS_H_
#define MILEPOST_ENGINE_PLAN_PASSES_ZERO_PASS_H_

#include <vector>

#include "engine/plan/step_plan.h"

namespace milepost::plan {

// Ops in program order with `when` and their costs; no streams, buffers or accesses yet.
std::vector<PlannedOp> MakeTrainingOps(const graph::Graph& graph,
                                       const std::vector<FlatGroup>& groups,
                                       const PlanOptions& options);

// Of StepPlan::exchange and StepPlan::gather: one for every group whose average is kept.
std::vector<PlannedOp> MakeExchangeOps(const std::vector<FlatGroup>& groups);
std::vector<PlannedOp> MakeGatherOps(const std::vector<FlatGroup>& groups,
                                     const PlanOptions& options);

// The graph's ops alone, every micro-step: what evaluation and generation run.
std::vector<PlannedOp> MakeForwardOps(const graph::Graph& graph, const PlanOptions& options);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PASSES_ZERO_PASS_H_
