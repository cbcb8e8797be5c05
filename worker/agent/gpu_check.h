// Whether a GPU that has reported an error computes as it should: asked of the trainer's binary,
// which owns devices, in a process of its own.
//
//   const absl::Status health = CheckGpu(binary, "GPU-7f...");
#ifndef MILEPOST_WORKER_AGENT_GPU_CHECK_H_
#define MILEPOST_WORKER_AGENT_GPU_CHECK_H_

#include <string>

#include "absl/status/status.h"

namespace milepost::worker {

// Starts `binary check`, which sees that GPU alone; what it says goes to this process's stderr.
// Blocks for half a minute at most. An error says what was tried, and how it ended.
absl::Status CheckGpu(const std::string& binary, const std::string& uuid);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_GPU_CHECK_H_
