#include "engine/ops/pipeline/pipeline.h"

#include "common/status_macros.h"
#include "engine/ops/backward.h"
#include "engine/ops/op_definition.h"

namespace milepost::ops {
namespace {

using graph::Op;
using graph::OpKind;
using graph::ValueId;

absl::Status StageReceiveGradient(Backward& backward, const Op& op) {
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  backward.Emit(op, OpKind::kStageSend, {dy}, {});
  return absl::OkStatus();
}

absl::Status StageSendGradient(Backward& backward, const Op& op) {
  const ValueId dx = backward.NewGradient(op.inputs[0]);
  backward.Emit(op, OpKind::kStageReceive, {}, {{.value = dx}});
  return backward.SetGradient(op, op.inputs[0], dx);
}

}  // namespace

constinit const OpDefinition kStageReceive = {.gradient = StageReceiveGradient, .once = true};
constinit const OpDefinition kStageSend = {.gradient = StageSendGradient, .once = true};

Op StageReceiveOp(ValueId y, int peer_stage) {
  Op op = {.kind = OpKind::kStageReceive, .outputs = {{.value = y}}};
  op.attributes.peer_stage = peer_stage;
  return op;
}

Op StageSendOp(ValueId x, int peer_stage) {
  Op op = {.kind = OpKind::kStageSend, .inputs = {x}};
  op.attributes.peer_stage = peer_stage;
  return op;
}

}  // namespace milepost::ops
