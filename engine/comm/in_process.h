// Ranks as threads of one process, over shared memory: for tests and for single-process runs.
//
//   std::vector<std::unique_ptr<Communicator>> ranks = MakeInProcessGroup(4);
//   // thread r uses *ranks[r]
#ifndef MILEPOST_ENGINE_COMM_IN_PROCESS_H_
#define MILEPOST_ENGINE_COMM_IN_PROCESS_H_

#include <memory>
#include <vector>

#include "engine/comm/communicator.h"

namespace milepost::comm {

// Makes `world` communicators that form one group. Destroying one poisons the others, as the death
// of a rank does. The threads may destroy theirs in any order.
std::vector<std::unique_ptr<Communicator>> MakeInProcessGroup(
    int world, const CommunicatorOptions& options = {});

}  // namespace milepost::comm

#endif  // MILEPOST_ENGINE_COMM_IN_PROCESS_H_
