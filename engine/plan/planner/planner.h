// From a job spec to a verified StepPlan. Pure: no device, no data, no files; milliseconds, for a
// thousand layers half a second (`planning` bounds what several may take together). Used by the
// trainer (to run it), the coordinator (to admit) and the CLI (to explain).
//
//   MP_ASSIGN_OR_RETURN(plan::StepPlan plan, plan::PlanTraining(spec, options));
#ifndef MILEPOST_ENGINE_PLAN_PLANNER_PLANNER_H_
#define MILEPOST_ENGINE_PLAN_PLANNER_PLANNER_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/plan/planning.h"
#include "engine/plan/step_plan.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::plan {

// kOneForwardOneBackward where the spec names none.
PipelineSchedule ScheduleOf(v1::PipelineSchedule schedule);

// `spec` must be normalised (common/spec/validate.h). Options that the spec decides: world, stage,
// precision, micro batch, sequence, accumulation. `threads`: CPU threads of a rank, at least 1.
// INVALID_ARGUMENT, naming the field, when the batch cannot be derived.
// Of a pipeline: those of its first stage.
absl::StatusOr<PlanOptions> OptionsFromSpec(const v1::JobSpec& spec, int threads);

// Builds the graphs, runs autodiff and every pass, verifies. INTERNAL only for a bug of ours.
// INVALID_ARGUMENT, naming the field, for a recomputation budget that cannot be kept.
// The errors of `planning` where it is given and ends the work.
absl::StatusOr<StepPlan> PlanTraining(const v1::JobSpec& spec, const PlanOptions& options,
                                      Planning* planning = nullptr);

// The same without the proof: to know its bytes. Nothing may run it.
absl::StatusOr<StepPlan> MeasureTraining(const v1::JobSpec& spec, const PlanOptions& options,
                                         Planning* planning = nullptr);

// All of it but offsets and proof, for choosing among many: nothing may run it. Its memory is
// LeastBytes (memory_pass.h) or a little more.
absl::StatusOr<StepPlan> DraftTraining(const v1::JobSpec& spec, const PlanOptions& options,
                                       Planning* planning = nullptr);

// By run of blocks of the options' pipeline, which is by stage where there is one chunk: what its
// blocks multiply, in order. Stages whose runs have the same entries have the same ops, but for
// their first and last transfers.
absl::StatusOr<std::vector<std::vector<double>>> CostsOfRuns(const v1::JobSpec& spec,
                                                             const PlanOptions& options);

// Inference alone: parameters, caches of keys and values for options.sequence positions of each of
// options.texts texts, and the programs `prompt` (of PromptChunk tokens of one), `next` (of one
// token of each) and, with options.scores, `score`. No gradients or optimizer state; what the
// programs need beside the caches does not grow with the positions.
// INVALID_ARGUMENT for a model that does not go on with a text, and for more than kMostTexts.
absl::StatusOr<StepPlan> PlanGeneration(const v1::ModelSpec& model, const PlanOptions& options);

inline constexpr int64_t kMostTexts = 64;

// How many tokens of a text are run at once.
constexpr int64_t PromptChunk(int64_t positions) { return std::min<int64_t>(positions, 64); }

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PLANNER_PLANNER_H_
