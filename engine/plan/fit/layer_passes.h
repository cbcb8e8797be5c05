// What a pipeline's stage takes of a micro-batch for each of its layers, from short drafts: the
// middle one of three stages with few layers and micro-batches. They cost a few hundredths of the
// drafts of all stages, and hold for any number of stages and ZeRO ranks.
//
//   MP_ASSIGN_OR_RETURN(const LayerPasses layer, DraftLayerPasses(spec, place));
//   layer.Seconds(profile);                   // of a forward, a backward and its weights
//   layer.TransferSeconds(options, profile);  // between two stages
//
// A stage takes no less: parameters that are gathered come on top, as do the embedding and the
// head. Pure.
#ifndef MILEPOST_ENGINE_PLAN_FIT_LAYER_PASSES_H_
#define MILEPOST_ENGINE_PLAN_FIT_LAYER_PASSES_H_

#include "absl/status/statusor.h"
#include "engine/plan/estimates/estimate.h"
#include "engine/plan/fit/settings.h"
#include "engine/plan/pipeline/schedule.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::plan {

struct LayerPasses {
  StepCosts few;
  StepCosts more;
  double layers = 0;  // by which `more` has more than `few`; 0: layers are not alike
  double work = 0;    // of planning a layer's ops of a micro-batch (planning.h)

  // Of a layer.
  PassTimes Seconds(const DeviceProfile& profile) const;
  // What a stage of a pipeline with `options` sends of a micro-batch, in the direction that takes
  // longer. Whether it leaves a host depends on the number of stages.
  double TransferSeconds(const PlanOptions& options, const DeviceProfile& profile) const;
};

// `spec` has a pipeline and nothing that is `auto`. The errors are DraftTraining's.
absl::StatusOr<LayerPasses> DraftLayerPasses(const v1::JobSpec& spec, const RankPlace& place);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_FIT_LAYER_PASSES_H_
