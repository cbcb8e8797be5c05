// Plans are large and take a core: only a few are made at once, and one for each caller.
//
//   absl::Status entered = room.Enter(who, still_wanted);  // waits
//   ...
//   room.Leave(who);
#ifndef MILEPOST_COORDINATOR_RPC_PLANNING_ROOM_H_
#define MILEPOST_COORDINATOR_RPC_PLANNING_ROOM_H_

#include <functional>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
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

  // Waits until there is room and `who` has no other plan in it, as long as `still_wanted` says OK;
  // it is asked a few times a second. Empty `who`: nobody in particular, of whom there may be
  // several. RESOURCE_EXHAUSTED when too many wait. After OK Leave must follow.
  absl::Status Enter(const std::string& who, const StillWanted& still_wanted);
  void Leave(const std::string& who);

 private:
  struct Caller {
    int calls = 0;
    bool plans = false;
  };
  bool MayEnterLocked(const std::string& who) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void GoneLocked(const std::string& who) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  absl::CondVar left_;
  int plans_ ABSL_GUARDED_BY(mutex_) = 0;
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Caller> callers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_PLANNING_ROOM_H_
