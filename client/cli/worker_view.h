// Describes a worker's slots and GPUs in words. Pure and thread-safe.
#ifndef MILEPOST_CLIENT_CLI_WORKER_VIEW_H_
#define MILEPOST_CLIENT_CLI_WORKER_VIEW_H_

#include <string>

#include "absl/time/time.h"
#include "milepost/v1/worker.pb.h"

namespace milepost::client {

// All slots: "cpu", "NVIDIA H200"; several models are separated by commas.
std::string DevicesText(const v1::Worker& worker);
// One slot's memory: "141.0 GiB", or a range "24.0 GiB to 141.0 GiB"; "-" when not known.
std::string SlotMemoryText(const v1::Worker& worker);

// "NVIDIA H200, 141.0 GiB, capability 9.0, 16 cores of NUMA node 0", "cpu, 15.5 GiB, 4 cores"
std::string SlotText(const v1::Slot& slot);

// "97% busy, 61.0 GiB used, 650 of 700 W, 61 °C, ...": what is known about the GPU, and when it was
// measured. Or "out of order: ...".
std::string FactsText(const v1::DeviceFacts& facts, absl::Time now);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_WORKER_VIEW_H_
