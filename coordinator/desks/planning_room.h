// Plans are large and take a core: only a few are made at once, and one for each caller. Callers
// take turns, and nobody's crowd keeps others out.
//
//   const absl::StatusOr<uint64_t> entered = room.Enter(who, still_wanted);  // waits
//   ...
//   room.Leave(*entered);
//
// Thread-safe.
#ifndef MILEPOST_COORDINATOR_DESKS_PLANNING_ROOM_H_
#define MILEPOST_COORDINATOR_DESKS_PLANNING_ROOM_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace milepost::coordinator {

// OK as long as what is being made is wanted; else what its caller hears.
using StillWanted = std::function<absl::Status()>;

class PlanningRoom {
 public:
  static constexpr int kPlansAtOnce = 2;
  // Of all callers, in it or before it: each holds a thread of the server.
  static constexpr int kMostCalls = 64;
  static constexpr int kMostCallsOfOne = 16;

  // Waits for the turn of `who`, who has no other plan in it then, as long as `still_wanted` says
  // OK; it is asked a few times a second. Empty `who`: nobody in particular, of whom there may be
  // several. RESOURCE_EXHAUSTED: too many wait, and of the caller's project no fewer than of
  // others; or they came later, and of others fewer wait. After OK Leave must follow.
  absl::StatusOr<uint64_t> Enter(const std::string& who, const StillWanted& still_wanted);
  void Leave(uint64_t entered);

 private:
  struct Call {
    enum State { kWaits, kPlans, kDisplaced };  // the last: by one of a project with fewer
    std::string who;
    std::string project;
    State state = kWaits;
  };
  using Calls = std::map<uint64_t, Call>;

  absl::Status MakePlaceLocked(const std::string& who, const std::string& project)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool PlansLocked(const std::string& who) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Whose turn it is; 0: nobody's.
  uint64_t NextLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void RemoveLocked(uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  absl::CondVar changed_;
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;  // of calls and turns
  Calls calls_ ABSL_GUARDED_BY(mutex_);        // in the order in which they came; few
  // Of those who have calls: when the last one began to plan, or the first one came.
  std::map<std::string, uint64_t> turns_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_DESKS_PLANNING_ROOM_H_
