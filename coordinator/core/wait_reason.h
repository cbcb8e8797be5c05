// What a job at the head of the queue waits for, in words.
//
//   WaitReason(2, v1::DEVICE_KIND_CUDA, supply);
//   // "needs 2 cuda slots; the workers have 0 cuda slots, 4 cpu: start workers with 2 more"
//
// Pure.
#ifndef MILEPOST_COORDINATOR_CORE_WAIT_REASON_H_
#define MILEPOST_COORDINATOR_CORE_WAIT_REASON_H_

#include <map>
#include <string>
#include <vector>

#include "milepost/v1/job_spec.pb.h"

namespace milepost::coordinator {

// The slots of the workers that are ready, without those that are out of order.
struct SlotSupply {
  int ready_workers = 0;
  std::map<v1::DeviceKind, int> by_kind;
  // Of the kind that the job wants, by device model.
  std::map<std::string, int> by_model;
  std::map<std::string, int> free_by_model;
  // Why slots of that kind are missing: out of order, or not offered. The first ones, and how many
  // there are; 0: these are all.
  std::vector<std::string> missing;
  int missing_in_all = 0;
};

// For a job of `ranks` ranks that cannot be placed.
std::string WaitReason(int ranks, v1::DeviceKind device, const SlotSupply& supply);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_CORE_WAIT_REASON_H_
