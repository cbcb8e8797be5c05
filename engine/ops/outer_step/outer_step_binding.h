// What the binders of outer steps share.
#ifndef MILEPOST_ENGINE_OPS_OUTER_STEP_OUTER_STEP_BINDING_H_
#define MILEPOST_ENGINE_OPS_OUTER_STEP_OUTER_STEP_BINDING_H_

#include <cstdint>
#include <vector>

#include "engine/ops/outer_step/outer_step_contract.h"
#include "engine/runtime/executor/group_ops.h"

namespace milepost::ops {

// One group's shard.
struct OuterShard {
  explicit OuterShard(const runtime::OpBinding& b)
      : elements(runtime::GroupOf(b).shard_elements),
        master(runtime::ShardMaster(b)),
        anchor(runtime::BufferOf<float>(b, runtime::GroupOf(b).anchor_buffer)),
        momentum(runtime::BufferOf<float>(b, runtime::GroupOf(b).outer_momentum_buffer)) {
    const plan::PlanOptions& options = b.plan.options;
    step = {.share = 1.0F / static_cast<float>(options.islands),
            .lr = static_cast<float>(options.outer_lr),
            .momentum = static_cast<float>(options.outer_momentum),
            .nesterov = options.outer_nesterov};
    if (options.HasMasters()) parameters = runtime::ShardParameters<bf16>(b);
    for (const plan::BufferId state : runtime::GroupOf(b).state_buffers) {
      if (state != plan::kNoBuffer) states.push_back(runtime::BufferOf<float>(b, state));
    }
  }

  kernels::OuterStep step;
  int64_t elements;
  float* master;
  float* anchor;
  float* momentum;
  bf16* parameters = nullptr;  // made of the master; null: they are the master
  std::vector<float*> states;  // the optimizer's
};

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_OUTER_STEP_OUTER_STEP_BINDING_H_
