// What a setting needs and takes, from drafts of fewer layers: a model's layers are alike, so two
// short drafts say what the rest adds, in a fraction of the time that a draft of all of them takes.
// Of a pipeline, whose stages have few layers, from drafts of fewer micro-batches: a stage keeps no
// more of them however many there are. (Of zero-bubble with ZeRO stage 3 from all of them.)
//
//   MP_ASSIGN_OR_RETURN(const ScaledDraft draft, DraftScaled(WithSetting(spec, setting), place));
//   draft.bytes;             // nearly LeastBytes of the whole plan
//   draft.Seconds(profile);  // nearly that of the whole plan
//
// Bytes are exact where each layer adds as many as the one before. Seconds are those of the whole
// plan, or a little less: a step takes as long as its longest chain of ops, and another chain may
// become the longest with more layers. Pure.
#ifndef MILEPOST_ENGINE_PLAN_FIT_SCALED_DRAFT_H_
#define MILEPOST_ENGINE_PLAN_FIT_SCALED_DRAFT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/plan/estimates/estimate.h"
#include "engine/plan/fit/settings.h"
#include "engine/plan/fit/stage_drafts.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::plan {

struct ScaledDraft {
  int64_t bytes = 0;       // that a rank needs (required_bytes.h)
  int64_t host_bytes = 0;  // of its host's memory
  // Without a pipeline. Of a rank's tensor rank, before anything is sharded: elements that are
  // trained, and bytes that live through the whole run.
  double trained_elements = 0;
  double expert_elements = 0;  // of these, those that expert ranks share out
  double parameter_bytes = 0;
  double gradient_bytes = 0;
  double optimizer_bytes = 0;
  double activation_bytes = 0;  // at the fullest moment of those
  // What all layers keep of them, and how much work planning their forward and backward is
  // (planning.h); 0: not known.
  double layer_bytes = 0;
  double layer_work = 0;
  double layer_elements = 0;  // likewise: of trained_elements, those of layers
  // Of a micro-batch, in all layers: what attention reads and makes.
  double attention_elements = 0;
  // The same of its forward: bytes of the rows that a rank sends to experts and back, if all are
  // used alike.
  double expert_row_bytes = 0;

  // Of a step.
  double Seconds(const DeviceProfile& profile) const;
  // Without a pipeline: the computation's part of a micro-step.
  double MicroStepSeconds(const DeviceProfile& profile) const;
  // The same of what tensor ranks send each other.
  double TensorSeconds(const DeviceProfile& profile) const;

  // Of few and of more layers; the same where all have been planned.
  StepCosts few;
  StepCosts more;
  double times = 0;  // the difference of both is to be added to `more`
  // Of a pipeline instead: with `drafted` micro-batches in place of all.
  PipelineDraft stages;
  PipelineShape shape;
  int drafted = 0;
};

// The same model with another number of layers.
v1::JobSpec WithLayers(v1::JobSpec spec, int64_t layers);
// Whether the place of a layer in the model makes no difference to what it does.
bool LayersAreAlike(const v1::JobSpec& spec);

// `spec` has nothing that is `auto`. Of a pipeline that needs more memory than the place has, the
// bytes are those of one stage that does, and there are no seconds. The errors are DraftTraining's.
absl::StatusOr<ScaledDraft> DraftScaled(const v1::JobSpec& spec, const RankPlace& place);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_FIT_SCALED_DRAFT_H_
