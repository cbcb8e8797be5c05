// By what the stages of a pipeline hand on activations and their gradients: two communicators among
// all ranks, each used by a thread of its own. Null where there is one stage. They outlive whoever
// has them.
#ifndef MILEPOST_ENGINE_RUNTIME_EXECUTOR_STAGE_TRANSFERS_H_
#define MILEPOST_ENGINE_RUNTIME_EXECUTOR_STAGE_TRANSFERS_H_

#include "absl/strings/string_view.h"
#include "engine/comm/communicator.h"

namespace milepost::runtime {

struct StageTransfers {
  comm::Communicator* activations = nullptr;
  comm::Communicator* gradients = nullptr;
};

// Whatever peers wait for this rank in.
inline void AbortAll(comm::Communicator* communicator, const StageTransfers& transfers,
                     absl::string_view reason) {
  for (comm::Communicator* each : {communicator, transfers.activations, transfers.gradients}) {
    if (each != nullptr) each->Abort(reason);
  }
}

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_EXECUTOR_STAGE_TRANSFERS_H_
