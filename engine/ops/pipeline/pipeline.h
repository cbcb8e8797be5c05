// What pipeline stages hand on to each other (Huang et al., "GPipe", 2019; Narayanan et al.,
// "PipeDream", 2019). plan/passes/pipeline_pass.h puts the ops into a graph.
//
// kStageReceive: -> y: what the stage `peer_stage` sends
// kStageSend:    x -> nothing: to the stage `peer_stage`, which receives as many bytes
//
// In the forward activations go to the next stage; of an interleaved pipeline also from the last
// one to the first. In the backward the gradient of what was sent is received, and that of what was
// received is sent. Ops of one direction and pair of stages come in the same order on both.
#ifndef MILEPOST_ENGINE_OPS_PIPELINE_PIPELINE_H_
#define MILEPOST_ENGINE_OPS_PIPELINE_PIPELINE_H_

#include "engine/graph/graph.h"

namespace milepost::ops {

// Ops of no block: they belong to what lies between two stages.
graph::Op StageReceiveOp(graph::ValueId y, int peer_stage);
graph::Op StageSendOp(graph::ValueId x, int peer_stage);

inline bool IsStageTransfer(graph::OpKind kind) {
  return kind == graph::OpKind::kStageReceive || kind == graph::OpKind::kStageSend;
}

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_PIPELINE_PIPELINE_H_
