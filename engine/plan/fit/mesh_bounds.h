// What a setting needs and takes at least, from drafts of others that compute alike: what
// mesh_search.h passes settings over by. Pure.
//
// `alike`: a draft of the same micro-batch and expert ranks, with neither pipeline nor context
// ranks. `o`: of the setting itself.
#ifndef MILEPOST_ENGINE_PLAN_FIT_MESH_BOUNDS_H_
#define MILEPOST_ENGINE_PLAN_FIT_MESH_BOUNDS_H_

#include <cstdint>
#include <vector>

#include "engine/plan/estimates/device_profile.h"
#include "engine/plan/fit/layer_passes.h"
#include "engine/plan/fit/scaled_draft.h"
#include "engine/plan/pipeline/schedule.h"
#include "engine/plan/step_plan.h"

namespace milepost::plan {

// Flat groups are padded for the number of ranks: bounds from other numbers are a little off.
inline constexpr double kBoundPart = 0.98;

// Of what lives through the whole run, and the activations at their fullest moment.
double LeastBytesOf(const PlanOptions& o, const ScaledDraft& alike);

// Of a pipeline of a model with so many layers. Its first stage keeps `in_flight` micro-batches.
// `keeps_all`: as `alike`, without recomputation.
double LeastBytesOfStage(const PlanOptions& o, const ScaledDraft& alike,
                         const ScaledDraft& keeps_all, int64_t layers, int in_flight);

// What a micro-batch that computes alike takes on a device.
struct AlikeSeconds {
  double compute = 0;
  double sums = 0;  // of tensor ranks
};

// `waiting`: how many times as long as they compute stages take.
double LeastSecondsOf(const PlanOptions& o, const ScaledDraft& alike, const AlikeSeconds& seconds,
                      int64_t layers, double waiting, const DeviceProfile& profile);

// What the passes of a pipeline with so many layers take, waiting for each other. `layer`,
// `transfer`: LayerPasses'. `orders`: OrdersOf(); not looked at for kOneForwardOneBackward.
double LeastSecondsOfPasses(const PlanOptions& o, int64_t layers, const PassTimes& layer,
                            double transfer, const std::vector<StageOrder>& orders);

// Of a pipeline: closer, where `passes` is what those take at least.
double LeastSecondsOfStages(const PlanOptions& o, const ScaledDraft& alike,
                            const AlikeSeconds& seconds, int64_t layers, double passes,
                            const DeviceProfile& profile);

// Whether a coordinator would plan it: all micro-batches are in a stage's program.
bool FewOps(const PlanOptions& o, const ScaledDraft& alike);
// The same of a pipeline with so many layers: closer.
bool FewOpsOfStages(const PlanOptions& o, int64_t layers, const LayerPasses& layer);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_FIT_MESH_BOUNDS_H_
