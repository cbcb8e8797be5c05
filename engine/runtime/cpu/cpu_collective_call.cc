#include "engine/runtime/cpu/cpu_collective_call.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/comm/communicator.h"

namespace milepost::runtime {
namespace {

comm::Communicator* CommunicatorOf(const Binding& b) {
  switch (b.planned.stream) {
    case plan::Stream::kStageActivations:
      return b.transfers.activations;
    case plan::Stream::kStageGradients:
      return b.transfers.gradients;
    default:
      return b.communicator;
  }
}

}  // namespace

absl::Status BoundCall::Run(const StepContext& context) const {
  if (!call.has_value()) return absl::OkStatus();
  // Every rank has the same reduced norm, so all of them skip or none.
  if (call->of_update && context.skip_update) return absl::OkStatus();
  return CallOnHost(*call, data, *communicator, scratch);
}

absl::StatusOr<BoundCall> CallOf(const Binding& b) {
  BoundCall bound = {.communicator = CommunicatorOf(b)};
  MP_ASSIGN_OR_RETURN(bound.call, CollectiveOf(b.plan, b.program, b.planned, b.RankOfJob()));
  if (!bound.call.has_value()) return bound;
  bound.data = b.arena + bound.call->offset;
  bound.scratch = b.arena + bound.call->scratch_offset;
  if (bound.communicator != nullptr) return bound;
  return absl::InternalError(
      absl::StrCat(graph::Name(b.planned.op.kind), " is planned, but there is no communicator"));
}

absl::StatusOr<BoundOp> BindCall(const Binding& b) {
  MP_ASSIGN_OR_RETURN(const BoundCall call, CallOf(b));
  return [call](const StepContext& context) { return call.Run(context); };
}

}  // namespace milepost::runtime
