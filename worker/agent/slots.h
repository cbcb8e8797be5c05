// The slots that a worker offers: shares of its cores, or its GPUs, each with the cores near it.
//
//   MP_ASSIGN_OR_RETURN(SlotPlan plan, PlanSlots(options, nvml.get(), "", true));
//   hello.slots() = plan.slots[i].slot for each i
//
// A GPU slot is one whole GPU. It gets a share of the cores of the GPU's NUMA node, as far as the
// worker may use them. The node's cores are divided evenly among all GPUs of the node, offered or
// not. So workers side by side do not share cores. Where the node is not known, the slot gets a
// share of all cores.
#ifndef MILEPOST_WORKER_AGENT_SLOTS_H_
#define MILEPOST_WORKER_AGENT_SLOTS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "milepost/v1/worker.pb.h"
#include "worker/gpu/nvml.h"

namespace milepost::worker {

struct SlotOptions {
  // UNSPECIFIED: the GPUs, if there are some and a trainer for them; otherwise the cores. It also
  // means the cores when `count` is given.
  v1::DeviceKind device = v1::DEVICE_KIND_UNSPECIFIED;
  int count = 0;             // of CPU slots, 1 to 1024; 0: not given, counts as 1
  std::vector<int> gpus;     // NVML's indices; empty: all that can be used
  std::vector<int> cores;    // empty: all cores that this process may use
  int64_t memory_bytes = 0;  // the host's memory for all slots together; 0: all of it
};

struct PlannedSlot {
  v1::Slot slot;
  std::vector<int> cores;
  int gpu = -1;          // NVML's index
  int memory_node = -1;  // NUMA node for host memory; -1: any
};

struct SlotPlan {
  v1::DeviceKind device = v1::DEVICE_KIND_CPU;
  std::vector<PlannedSlot> slots;
  std::string note;  // why GPUs that the host has are not offered
};

// `nvml` is null where there is no usable driver; `why_no_nvml` then says why. `cuda_trainer`: the
// binary for ranks on GPUs is installed. INVALID_ARGUMENT and FAILED_PRECONDITION: the request
// cannot be offered; the message names its flag.
absl::StatusOr<SlotPlan> PlanSlots(const SlotOptions& options, const Nvml* nvml,
                                   const std::string& why_no_nvml, bool cuda_trainer);

// "2 cpu slots", "8 cuda slots (NVIDIA H200)"
std::string DescribeSlots(const SlotPlan& plan);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_SLOTS_H_
