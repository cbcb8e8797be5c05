// Drafts of a pipeline's stages: which one needs the most memory, and how long each takes.
//
//   MP_ASSIGN_OR_RETURN(const PipelineDraft draft, DraftPipeline(spec, options));
//   options.stage = draft.largest;
//   PipelineSeconds(ShapeOf(options), draft.Seconds(profile));
//
// Of stages with the same blocks only the one that keeps the most micro-batches is drafted: the
// others need no more, and compute as long. Stages of an interleaved pipeline, whose orders differ
// in what they receive ahead of time, are compared alike. Pure.
#ifndef MILEPOST_ENGINE_PLAN_FIT_STAGE_DRAFTS_H_
#define MILEPOST_ENGINE_PLAN_FIT_STAGE_DRAFTS_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/plan/estimates/estimate.h"
#include "engine/plan/planning.h"
#include "engine/plan/step_plan.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::plan {

struct PipelineDraft {
  int largest = 0;               // the stage whose ranks need the most memory
  int64_t bytes = 0;             // that they need (required_bytes.h)
  int64_t host_bytes = 0;        // of their host's memory
  std::vector<StepCosts> costs;  // of the stages that have been drafted
  std::vector<size_t> like;      // by stage: the index in `costs`

  // By stage.
  std::vector<StageSeconds> Seconds(const DeviceProfile& profile) const;
};

// For options of more than one stage; options.stage is not looked at. With a stage that needs more
// than `most_bytes` the work ends: `largest` and the bytes are its own, and there are no seconds.
// The errors are DraftTraining's.
absl::StatusOr<PipelineDraft> DraftPipeline(
    const v1::JobSpec& spec, PlanOptions options, Planning* planning = nullptr,
    int64_t most_bytes = std::numeric_limits<int64_t>::max());

// The same options at the stage whose ranks need the most memory; without stages as they are.
absl::StatusOr<PlanOptions> AtLargestStage(const v1::JobSpec& spec, PlanOptions options,
                                           Planning* planning = nullptr);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_FIT_STAGE_DRAFTS_H_
