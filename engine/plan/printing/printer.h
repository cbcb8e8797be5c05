// A plan in words: for `milepost plan`, the coordinator's messages and tests.
//
//   std::cout << plan::PlanTable(plan);
//   std::string json = plan::PlanJson(plan, {.place = place});
#ifndef MILEPOST_ENGINE_PLAN_PRINTING_PRINTER_H_
#define MILEPOST_ENGINE_PLAN_PRINTING_PRINTER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/estimates/estimate.h"
#include "engine/plan/fit/settings.h"
#include "engine/plan/step_plan.h"
#include "milepost/v1/job.pb.h"

namespace milepost::plan {

struct PrintOptions {
  // Where ranks would run: `fits` says whether one does. Absent: no `fits`.
  std::optional<RankPlace> place;
  // What is expected of a step, and on which device. Absent: nothing is said about time.
  std::optional<StepEstimate> estimate;
  std::string device;
  std::vector<v1::Choice> choices;  // what the planner chose (fit/fit.h)
  std::string unit = "tokens";      // what samples are made of, or are: "images"
  bool schedule = false;            // also every op of the training program, in order
};

// Several lines, each ended.
std::string PlanTable(const StepPlan& plan, const PrintOptions& options = {});

// One JSON object: {"fits": bool?, "chosen": [{"field", "value", "reason"}]?, "world": all ranks,
// "tensor", "pipeline": {"stages", "schedule", "stage": the one that is shown, "idle_share",
// "chunks"?}?,
// "sync": {"islands", "every", "outer_wire_bytes", "outer_seconds"?}?, "zero_stage",
// "shards": of the data ranks, "precision", "state_dtype",
// "grad_dtype", "master", "grad_reduce", "powersgd_rank"?, "micro_batch", "sequence",
// "accumulation", "side_by_side"?, "recompute", "recompute_budget": bytes?,
// "recompute_blocks": {"none": blocks, ...}?, "optimizer", "per_rank": {"parameters": bytes,
// "gradients", "optimizer", "activations", "workspace", "communication", "inputs", "slack",
// "total"},
// "per_rank_host": as per_rank?, "offload_bytes_per_step"?, "disk_bytes"?, "disk_bytes_per_step"?,
// "snapshot_bytes", "host_memory_bytes", "required_bytes"?, "expected": {"device", "seconds",
// "tokens_per_second", "mfu", "bound", "flop_seconds", "memory_seconds", "start_seconds",
// "exposed_seconds", "bubble_seconds", "communication_seconds", "offload_seconds"?,
// "disk_seconds"?}?, "parameters", "flops_per_step",
// "recompute_flops_per_step", "wire_bytes_per_step", "groups":
// [{"name", "elements": bytes where "dtype" is "U8", "padded_elements", "shard_elements", "dtype",
// "frozen"}], "ops": [{"op", "block", "phase",
// "stream", "when", "wait_for", "flops", "bytes", "wire_bytes"}]?}. `indent` < 0: on one line.
std::string PlanJson(const StepPlan& plan, const PrintOptions& options = {}, int indent = 2);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PRINTING_PRINTER_H_
