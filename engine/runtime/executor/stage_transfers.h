// By what the stages of a pipeline hand on activations and their gradients: two communicators among
// all ranks, each used by a thread of its own. Null where there is one stage. They outlive whoever
// has them.
#ifndef MILEPOST_ENGINE_RUNTIME_EXECUTOR_STAGE_TRANSFERS_H_
#define MILEPOST_ENGINE_RUNTIME_EXECUTOR_STAGE_TRANSFERS_H_

namespace milepost::comm {
class Communicator;
}

namespace milepost::runtime {

struct StageTransfers {
  comm::Communicator* activations = nullptr;
  comm::Communicator* gradients = nullptr;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_EXECUTOR_STAGE_TRANSFERS_H_
