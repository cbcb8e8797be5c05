#include "engine/runtime/gpu/backend/device_call.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace milepost::runtime {

absl::StatusOr<DeviceCall> DeviceCallOf(const CudaBinding& b) {
  DeviceCall bound = {.communicator = b.services.CommunicatorOf(b.planned.stream),
                      .arena = b.arena,
                      .scratch = b.Workspace(),
                      .stream = b.stream()};
  MP_ASSIGN_OR_RETURN(bound.call, CollectiveOf(b.plan, b.program, b.planned, b.RankOfJob()));
  if (!bound.call.has_value()) return bound;
  MP_RETURN_IF_ERROR(b.RequireWorkspace(CollectiveScratchBytes(*bound.call)));
  if (bound.communicator != nullptr) return bound;
  return absl::InternalError(
      absl::StrCat(graph::Name(b.planned.op.kind), " is planned, but there is no communicator"));
}

absl::StatusOr<BoundOp> BindCall(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(const DeviceCall call, DeviceCallOf(b));
  return [call](const StepContext&) { return call.Enqueue(); };
}

}  // namespace milepost::runtime
