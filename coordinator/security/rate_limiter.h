// How much one caller may do: calls a second, and calls at the same time; how many calls the
// callers of one group (a project) may have open, and how many all of them. Pure but for its own
// counts; time is an argument. Thread-safe.
//
//   const RateLimiter::Caller caller = {.name = "projects/p/users/alice", .groups = {}};
//   auto admitted = limiter.Begin(caller, now);
//   if (!admitted.ok()) ...      // RESOURCE_EXHAUSTED with a RetryInfo
//   limiter.End(caller);
#ifndef MILEPOST_COORDINATOR_SECURITY_RATE_LIMITER_H_
#define MILEPOST_COORDINATOR_SECURITY_RATE_LIMITER_H_

#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace milepost::coordinator {

struct Limits {
  double calls_per_second = 500;
  double burst = 1000;  // calls after a pause
  int calls_at_once = 256;
  int group_calls_at_once = 384;
  // Of all callers together. The server has a thread for each call that lasts, and those of ranks
  // and of whoever administers the cluster must find one.
  int all_calls_at_once = 768;
};

// Of the ranks on workers, which meet in bursts: no limit to their calls a second. What is refused
// is tried again.
inline constexpr Limits kRankLimits = {
    .calls_per_second = 1e9, .burst = 1e9, .calls_at_once = 512, .all_calls_at_once = 768};
// Of those of their calls that wait for other ranks, whose calls are of the kind before.
inline constexpr Limits kRankWaitLimits = {
    .calls_per_second = 1e9, .burst = 1e9, .calls_at_once = 256, .all_calls_at_once = 384};

class RateLimiter {
 public:
  struct Caller {
    std::string name;
    std::vector<std::string> groups;  // counts for each of them
    bool always = false;              // counts for itself alone
  };

  explicit RateLimiter(const Limits& limits) : limits_(limits) {}

  // OK: the call may go on, and End must follow, with the same caller. Callers that have not called
  // for long are forgotten, so that memory is bounded by those that do.
  absl::Status Begin(const Caller& caller, absl::Time now);
  void End(const Caller& caller);

 private:
  struct Bucket {
    double tokens = 0;
    absl::Time filled;
    int calls = 0;
  };
  void Forget(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Limits limits_;
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, Bucket> buckets_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, int> groups_ ABSL_GUARDED_BY(mutex_);  // their calls
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;                                 // of all
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_SECURITY_RATE_LIMITER_H_
