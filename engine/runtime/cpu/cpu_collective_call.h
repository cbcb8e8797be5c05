// Internal to cpu_backend and to the rooms of ops: the call of an op by which ranks communicate,
// which CollectiveOf tells.
//
//   MP_ASSIGN_OR_RETURN(const BoundCall call, CallOf(b));
//   return [call, ...](const StepContext& context) { ...; return call.Run(context); };
#ifndef MILEPOST_ENGINE_RUNTIME_CPU_CPU_COLLECTIVE_CALL_H_
#define MILEPOST_ENGINE_RUNTIME_CPU_CPU_COLLECTIVE_CALL_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/runtime/cpu/cpu_op.h"
#include "engine/runtime/executor/collectives.h"

namespace milepost::runtime {

// An op's call, if it has one.
struct BoundCall {
  absl::Status Run(const StepContext& context) const;

  std::optional<Collective> call;
  char* data = nullptr;
  char* scratch = nullptr;
  comm::Communicator* communicator = nullptr;
};

// INTERNAL where a call is planned and there is no communicator.
absl::StatusOr<BoundCall> CallOf(const Binding& b);
// The call alone.
absl::StatusOr<BoundOp> BindCall(const Binding& b);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_CPU_CPU_COLLECTIVE_CALL_H_
