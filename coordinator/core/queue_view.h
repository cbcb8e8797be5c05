// What a scheduling pass found about the jobs that wait, and its telling in words: why, at which
// place of the queue, and what would start it. Rendered when somebody asks, so that a pass over
// thousands of jobs writes no texts.
//
//   v1::Job job = record.job();
//   // fills reason, reason_detail, queue_position:
//   DescribeWait(view, number, record.slot_bytes(), &job);
//
// Plain data; immutable once made.
#ifndef MILEPOST_COORDINATOR_CORE_QUEUE_VIEW_H_
#define MILEPOST_COORDINATOR_CORE_QUEUE_VIEW_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "coordinator/core/placement.h"
#include "milepost/v1/job.pb.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::coordinator {

enum class WaitCode : uint8_t {
  kNone,
  kSlots,             // at the head: slots that it could use are held by others
  kTooFewSlots,       // the workers that are ready could not run it even if all slots were free
  kTurn,              // jobs before it come first
  kLimit,             // its queue may not hold more slots
  kTooFarLimit,       // its queue's limit is below what it needs
  kRoomIsMade,        // others are stopping for it
  kDependency,        // a job that it depends on has not succeeded yet
  kFailedDependency,  // one that it depends on has ended without success
  kBackingOff,        // a failed attempt; the job's own reason stands
  kArrayLimit,        // as many jobs of its array hold slots as may
};

// A job that waits.
struct Waiting {
  WaitCode code = WaitCode::kNone;
  int position = 0;     // among those that wait for this kind of device, from 1 on
  int64_t blocker = 0;  // the job that has to go first, or that it depends on
};

// A class's slots, as the pass left them.
struct ClassSummary {
  SlotCounts usable;
  SlotCounts free;
};

// A worker that would take ranks if it were not drained, or down.
struct AbsentHost {
  std::string worker;
  SlotCounts slots;  // in order
  absl::Time since;
  std::string reason = {};  // of a drain
  bool goes_away = false;   // its host does, with or without the drain
};

struct AbsentHosts {
  std::vector<AbsentHost> some;
  int in_all = 0;
};

struct ClusterSummary {
  int ready_workers = 0;
  std::map<v1::DeviceKind, int> usable;      // slots by kind
  std::map<SlotClass, AbsentHosts> drained;  // of the kind
  std::map<SlotClass, AbsentHosts> down;     // of the kind; the newest first
  // Why slots of the kind are missing: out of order, or not offered. A few of them.
  std::vector<std::string> missing;
  int missing_in_all = 0;
};

struct HolderView {
  int64_t job = 0;
  int slots = 0;       // that it could use
  absl::Time release;  // by its time limit; InfiniteFuture: it has none
};

// A queue's slots, as the pass left them.
struct QueueSummary {
  int used = 0;
  int limit = 0;
};

// Of one kind of device.
struct KindView {
  ClusterSummary summary;
  std::map<SlotClass, ClassSummary> slots;
  std::map<std::string, QueueSummary> queues;
  absl::flat_hash_map<int64_t, Waiting> waiting;  // by job
  // Of the job at the head: who holds slots that it could use, the ones that end first; and when it
  // starts at the latest. A few of them.
  std::vector<HolderView> holders;
  int holders_in_all = 0;
  absl::Time head_start = absl::InfiniteFuture();
};

struct QueueView {
  std::map<v1::DeviceKind, KindView> kinds;
};

// nullptr: it does not wait for slots.
const Waiting* FindWaiting(const QueueView& view, int64_t job, v1::DeviceKind device);

// Sets reason, reason_detail and queue_position of a job that waits for slots; leaves others alone.
// `slot_bytes` as its record has it.
void DescribeWait(const QueueView& view, int64_t number, int64_t slot_bytes, v1::Job* job);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_CORE_QUEUE_VIEW_H_
