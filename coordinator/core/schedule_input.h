// What a scheduling pass is given, and what it answers (scheduler.h).
#ifndef MILEPOST_COORDINATOR_CORE_SCHEDULE_INPUT_H_
#define MILEPOST_COORDINATOR_CORE_SCHEDULE_INPUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/core/placement.h"
#include "coordinator/core/queue_view.h"

namespace milepost::coordinator {

// A queue, for one kind of device.
struct QueueShare {
  std::string name;
  double weight = 1;     // of what is free to be shared; above 0
  int guaranteed = 0;    // slots that it can have back from queues that have more than theirs
  int limit = kNoLimit;  // slots that it never exceeds
  int used = 0;          // slots that its jobs hold, or have been admitted to
  int leaving = 0;       // of these, held by jobs that leave and do not come back at once

  static constexpr int kNoLimit = 1 << 30;
};

enum class Admission : uint8_t {
  kNone,
  kHeld,     // it ran, and keeps its slots while it winds up and backs off
  kGranted,  // others have been told to make room for it
};

// A number of ranks that an elastic job can run with.
struct GangSize {
  int ranks = 1;
  int64_t slot_bytes = 0;  // that a slot must have then
};

// A job that wants slots.
struct Demand {
  int64_t job = 0;
  int queue = 0;  // index into ScheduleInput::queues
  int priority = 0;
  int64_t order = 0;       // smaller came first
  int ranks = 1;           // at least
  int64_t slot_bytes = 0;  // that a slot must have then
  // Of an elastic job further sizes, ascending: it starts with the largest that there are slots
  // for, with those beyond `usual` only where no other job wants slots.
  std::vector<GangSize> larger;
  int usual = 1;
  int wanted = 0;  // what it had before it had to start again, or is to grow to
  std::vector<std::string> last_workers;  // which it has run on, and had better again
  bool elsewhere = false;                 // or rather not: it has failed there more than once
  int islands = 1;                        // of equal size, each of which had better be in one rack
  // Views of its spec, which outlives the pass; empty: any.
  absl::string_view pool;
  absl::string_view device_model;
  absl::Duration time_limit = absl::InfiniteDuration();  // that it may still hold its slots
  // Counted in its queue's `used` already, and before all that are not.
  Admission admission = Admission::kNone;
  bool winding_up = false;  // its last attempt still holds slots: it cannot start now
  int counted = 0;          // slots that its queue's `used` has for it
  absl::Time not_before = absl::InfinitePast();
  WaitCode gate = WaitCode::kNone;  // what else keeps it from starting; kNone: nothing
  int64_t gate_job = 0;             // the job that it depends on
  int array = -1;                   // index into ScheduleInput::arrays; -1: any number may run
};

// Jobs of which only so many may run at a time.
struct ArrayShare {
  int max_parallel = 1;
  int running = 0;  // that hold slots, or have been admitted to some
};

// A job that holds slots.
struct Holding {
  int64_t job = 0;
  int queue = 0;
  int priority = 0;
  SlotClass slot_class = {};
  // That come back to the class when it leaves: not those of a host that drains.
  SlotCounts slots = {};
  int held = 0;  // in all
  absl::Time start = absl::InfinitePast();
  absl::Time release = absl::InfiniteFuture();  // at the latest, by its time limit
  bool leaving = false;                         // told to stop: its slots come free by themselves
  int64_t leaves_for = 0;                       // the job that it makes room for
  bool stays = false;                           // may not be told to leave
  std::vector<GangSize> larger;                 // that it may be told to go on with, ascending
};

// All of one kind of device.
struct ScheduleInput {
  absl::Time now;
  // How long a job that is told to stop may take.
  absl::Duration graceful_stop;
  SlotPools pools;
  std::vector<QueueShare> queues;
  std::vector<ArrayShare> arrays;
  std::vector<Demand> demands;
  std::vector<Holding> holdings;
  ClusterSummary summary;  // for the view
};

struct Schedule {
  struct Start {
    int64_t job = 0;
    std::vector<PlacedRank> placed;
  };
  struct Preemption {
    int64_t victim = 0;
    int64_t winner = 0;
  };
  struct Resize {
    int64_t job = 0;
    int ranks = 0;
  };
  std::vector<Start> starts;
  std::vector<Preemption> preemptions;
  std::vector<Resize> resizes;
  // Jobs that wait like all others from now on: they still do not fit, and nobody makes room for
  // them any more, or they do not back off any more.
  std::vector<int64_t> no_longer_admitted;
  KindView view;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_CORE_SCHEDULE_INPUT_H_
