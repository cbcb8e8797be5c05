// What a job at the head of the queue waits for, in words.
//
//   WaitReason({.ranks = 2, .device = v1::DEVICE_KIND_CUDA}, supply);
//   // "needs 2 cuda slots; the workers have 0 cuda slots, 4 cpu: start workers with 2 more"
//   WaitReason({8, v1::DEVICE_KIND_CUDA, {"batch", "h200"}, int64_t{141} << 30}, supply);
//   // "needs 8 x h200 in pool batch with 141.0 GiB; 6 of 8 on 1 ready worker are free"
//
// Pure.
#ifndef MILEPOST_COORDINATOR_CORE_WAIT_REASON_H_
#define MILEPOST_COORDINATOR_CORE_WAIT_REASON_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/placement.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::coordinator {

// What a job that cannot be placed asks for.
struct SlotWish {
  int ranks = 1;
  v1::DeviceKind device = v1::DEVICE_KIND_CPU;
  SlotClass of = {};       // any where empty
  int64_t slot_bytes = 0;  // that each slot must have; 0: any will do
};

// The slots of the workers that are ready, without those that are out of order.
struct SlotSupply {
  int ready_workers = 0;
  std::map<v1::DeviceKind, int> by_kind;
  // Of those that the job wants.
  std::map<SlotClass, int> by_class;
  std::map<SlotClass, int> free_by_class;
  // Why slots of that kind are missing: drained, out of order, or not offered. The first ones, and
  // how many there are; 0: these are all.
  std::vector<std::string> missing;
  int missing_in_all = 0;
  bool can_be_taken_back = false;  // some of these, from a drain
};

std::string WaitReason(const SlotWish& wish, const SlotSupply& supply);

// "141.0 GiB"
std::string GiBText(int64_t bytes);
// "2026-01-01 10:00:00 UTC"
std::string TimeText(absl::Time time);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_CORE_WAIT_REASON_H_
