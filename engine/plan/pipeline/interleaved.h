// The interleaved order of a pipeline's passes (Narayanan et al., "Efficient Large-Scale Language
// Model Training on GPU Clusters Using Megatron-LM", 2021): schedule.h says what it is.
//
//   const std::vector<Pass> passes = InterleavedPasses(shape, /*stage=*/1);
//   const std::vector<StageOrder> orders = InterleavedOrders(shape);
//
// Pure.
#ifndef MILEPOST_ENGINE_PLAN_PIPELINE_INTERLEAVED_H_
#define MILEPOST_ENGINE_PLAN_PIPELINE_INTERLEAVED_H_

#include <vector>

#include "engine/plan/pipeline/schedule.h"

namespace milepost::plan {

std::vector<Pass> InterleavedPasses(const PipelineShape& shape, int stage);

// By stage. Runs of blocks hand on in a ring, in which every stage could be waiting for the one
// before to take what it sends. So transfers have one order for all stages: that of the times at
// which they would take place if a forward took 4, a backward 8 and a transfer 1. A stage's steps
// are in that order, and what it computes is between them. Whatever waits for something else then
// waits for what is earlier in that order, so nobody waits for ever.
std::vector<StageOrder> InterleavedOrders(const PipelineShape& shape);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PIPELINE_INTERLEAVED_H_
