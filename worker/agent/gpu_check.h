// Checks whether a GPU that has reported an error computes correctly. The trainer's binary, which
// owns devices, does this in a process of its own.
//
//   const absl::Status health = CheckGpu(binary, "GPU-7f...");
#ifndef MILEPOST_WORKER_AGENT_GPU_CHECK_H_
#define MILEPOST_WORKER_AGENT_GPU_CHECK_H_

#include <string>

#include "absl/status/status.h"

namespace milepost::worker {

// Starts `binary check`, which sees only that GPU. Its output goes to this process's stderr. Blocks
// for at most half a minute. An error says what was tried and how it ended.
absl::Status CheckGpu(const std::string& binary, const std::string& uuid);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_GPU_CHECK_H_
