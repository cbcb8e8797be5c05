// How long a planned step will take on a device, and what bounds it: before there is either.
//
//   const StepEstimate estimate = EstimateStep(plan, profile);
//   // estimate.seconds, estimate.tokens_per_second, Name(estimate.bound)
//
// Every op takes the larger of its FLOPs over the device's rate and its bytes over the memory's
// bandwidth (a roofline); on a CPU, which loads and computes in turn, both. Every collective takes
// its bytes on the wire over the link's bandwidth, every copy to or from the host its bytes over
// that link's, what the host updates its bytes over its memory's. The streams are then run through
// on paper, with the waits that the plan has between them, micro-step by micro-step as the executor
// does: what is left of communication beyond the computation that hides it is exposed. Data
// loading, validation and checkpoints are not in it.
//
// Pure, deterministic, linear in the number of ops.
#ifndef MILEPOST_ENGINE_PLAN_ESTIMATES_ESTIMATE_H_
#define MILEPOST_ENGINE_PLAN_ESTIMATES_ESTIMATE_H_

#include <cstdint>
#include <vector>

#include "engine/plan/estimates/device_profile.h"
#include "engine/plan/pipeline/schedule.h"
#include "engine/plan/step_plan.h"

namespace milepost::plan {

enum class Bound : uint8_t { kCompute, kMemory, kCommunication, kOffload, kDisk };
const char* Name(Bound bound);  // "compute", "memory", "communication", "offload", "disk"

struct StepEstimate {
  double seconds = 0;  // of one optimizer step, all micro-steps
  // Parts of it that add up to it: computation bound by FLOPs, by bytes (a CPU's ops take both),
  // the start of ops, and what collectives and what is offloaded add, be it that ops wait for them
  // or that they slow ops down.
  double flop_seconds = 0;
  double memory_seconds = 0;
  double start_seconds = 0;
  double exposed_seconds = 0;
  double bubble_seconds = 0;  // a pipeline's stage waits for others
  // train.sync: of one outer step. Each of the steps between two has its part in exposed_seconds.
  double outer_seconds = 0;
  double communication_seconds = 0;  // of collectives, as if they ran alone
  double offload_seconds = 0;        // of copies and the host's updates, likewise
  double disk_seconds = 0;           // of what is read from the disk and written to it, likewise
  double tokens_per_second = 0;      // of all ranks
  double mfu = 0;                    // flops_per_step over what the paper peak would do meanwhile
  Bound bound = Bound::kCompute;     // the largest of exposed, memory and FLOP seconds; exposed is
                                     // the largest of communication, offload and disk
};

// What of an op its time depends on. A plan's are small, and do for every device.
struct OpCosts {
  graph::OpKind kind = {};
  Stream stream = Stream::kCompute;
  When when = When::kEveryMicroStep;
  bool fp8 = false;
  // Of what attention reaches at its best (MatmulRate::attention).
  double attention_part = 1;
  // Positions that one sees; twice as many where it sees the later ones too.
  double attention_seen = 0;
  double product_part = 1;    // of a product's rate, that products of this kind reach
  int64_t product_least = 0;  // of a product's rows, columns and inner size; 0: not told
  int64_t added_rows = 0;     // of a weight's gradient that is added to; 0: it is not
  std::vector<int32_t> wait_for;
  double flops = 0;
  double bytes = 0;
  double wire_bytes = 0;
  bool of_experts = false;  // works on a group that only some ranks have (FlatGroup::of_experts)
  int pass = -1;            // of a pipeline's stage: index among its passes
  int64_t work = 1;         // as planning counts it (planning.h)
};

struct StepCosts {
  PlanOptions options;
  std::vector<OpCosts> ops;    // of the training program
  std::vector<OpCosts> outer;  // of an outer step
  double flops_per_step = 0;
};

StepCosts CostsOf(const StepPlan& plan);

// Of a pipeline's stage: as if all stages were like it.
StepEstimate EstimateStep(const StepCosts& step, const DeviceProfile& profile);
StepEstimate EstimateStep(const StepPlan& plan, const DeviceProfile& profile);

// What a step of a pipeline's stage takes, but for waiting for the other stages.
struct StageSeconds {
  // By chunk of the stage (PlanOptions::chunks): of a micro-batch, by kind, with what most of them
  // wait for.
  std::vector<PassTimes> passes = {PassTimes{}};
  double transfer = 0;  // of what one run of blocks hands on of a micro-batch, in one direction
  double rest = 0;      // all else: updates, and what the first pass waits for
};
StageSeconds SecondsOfStage(const StepCosts& step, const DeviceProfile& profile);

// Of all stages, as TimelineOf() takes them.
std::vector<PassTimes> TimesOfRuns(const std::vector<StageSeconds>& stages);

// Of a step in which each stage takes what `stages` says of it: the slowest one counts.
double PipelineSeconds(const PipelineShape& shape, const std::vector<StageSeconds>& stages);

// EstimateStep for a stage, where `stages` are all of them; none: there is no pipeline.
StepEstimate EstimateStage(const StepCosts& step, const DeviceProfile& profile,
                           const std::vector<StageSeconds>& stages);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_ESTIMATES_ESTIMATE_H_
