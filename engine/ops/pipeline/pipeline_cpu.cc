#include "common/status_macros.h"
#include "engine/comm/communicator.h"
#include "engine/runtime/cpu/cpu_op.h"

namespace milepost::ops::cpu {
namespace {

using runtime::Binding;
using runtime::BoundOp;
using runtime::StepContext;

absl::StatusOr<comm::Communicator*> TransfersOf(const Binding& b) {
  comm::Communicator* transfers = b.planned.stream == plan::Stream::kStageActivations
                                      ? b.transfers.activations
                                      : b.transfers.gradients;
  if (transfers != nullptr) return transfers;
  return absl::InternalError("a stage of a pipeline has no communicator for what it hands on");
}

size_t BytesOf(const graph::Value& value) {
  return static_cast<size_t>(graph::Elements(value.shape) * ByteSize(value.dtype));
}

absl::StatusOr<BoundOp> BindStageReceive(const Binding& b) {
  MP_ASSIGN_OR_RETURN(comm::Communicator* const transfers, TransfersOf(b));
  return [transfers, peer = b.PeerOfStage(b.attributes().peer_stage), y = b.Output<char>(0),
          bytes = BytesOf(b.ValueOf(b.OutputId(0)))](const StepContext&) {
    return transfers->Receive(peer, y, bytes);
  };
}

absl::StatusOr<BoundOp> BindStageSend(const Binding& b) {
  MP_ASSIGN_OR_RETURN(comm::Communicator* const transfers, TransfersOf(b));
  return [transfers, peer = b.PeerOfStage(b.attributes().peer_stage), x = b.Input<char>(0),
          bytes = BytesOf(b.ValueOf(b.planned.op.inputs[0]))](const StepContext&) {
    return transfers->Send(peer, x, bytes);
  };
}

}  // namespace

constinit const CpuOp kStageReceive = {.bind = BindStageReceive};
constinit const CpuOp kStageSend = {.bind = BindStageSend};

}  // namespace milepost::ops::cpu
