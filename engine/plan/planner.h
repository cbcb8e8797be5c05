// From a job spec to a verified StepPlan. Pure: no device, no data, no files; microseconds to
// milliseconds. Used by the trainer (to run it), the coordinator (to admit) and the CLI (to
// explain).
//
//   MP_ASSIGN_OR_RETURN(plan::StepPlan plan, plan::PlanTraining(spec, options));
#ifndef MILEPOST_ENGINE_PLAN_PLANNER_H_
#define MILEPOST_ENGINE_PLAN_PLANNER_H_

#include "absl/status/statusor.h"
#include "engine/plan/step_plan.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::plan {

// `spec` must be normalised (common/spec/validate.h). Options that the spec decides: world, stage,
// precision, micro batch, sequence, accumulation. `threads`: CPU threads of a rank, at least 1.
// INVALID_ARGUMENT, naming the field, when the batch cannot be derived.
absl::StatusOr<PlanOptions> OptionsFromSpec(const v1::JobSpec& spec, int threads);

// Builds the graphs, runs autodiff and every pass, verifies. INTERNAL only for a bug of ours.
// INVALID_ARGUMENT, naming the field, for a recomputation budget that cannot be kept.
absl::StatusOr<StepPlan> PlanTraining(const v1::JobSpec& spec, const PlanOptions& options);

// All of it but offsets and proof, for choosing among many: nothing may run it. Its memory is
// LeastBytes (memory_pass.h) or a little more.
absl::StatusOr<StepPlan> DraftTraining(const v1::JobSpec& spec, const PlanOptions& options);

// Inference alone: parameters, and one program (in `evaluate`) that ends in logits of the last
// position. `options.micro_batch` x `options.sequence` tokens; no gradients or optimizer state.
absl::StatusOr<StepPlan> PlanGeneration(const v1::ModelSpec& model, const PlanOptions& options);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PLANNER_H_
