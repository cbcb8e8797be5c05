// Limits the calls of one caller, per second and at the same time. It also limits the open calls of
// a group of callers (a project), and of all callers together. Pure except for its own counts; time
// is an argument. Thread-safe.
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
  double burst = 1000;  // calls in a burst after a pause
  int calls_at_once = 256;
  int group_calls_at_once = 384;
  // For all callers together. The server has a thread for each long call, and calls of ranks and of
  // the cluster's administrators must find one.
  int all_calls_at_once = 768;
};

// For the ranks on workers, which meet in bursts: no limit per second. Refused calls are tried
// again.
inline constexpr Limits kRankLimits = {
    .calls_per_second = 1e9, .burst = 1e9, .calls_at_once = 512, .all_calls_at_once = 768};
// For those calls of ranks that wait for other ranks; their other calls use the limits above.
inline constexpr Limits kRankWaitLimits = {
    .calls_per_second = 1e9, .burst = 1e9, .calls_at_once = 256, .all_calls_at_once = 384};

class RateLimiter {
 public:
  struct Caller {
    std::string name;
    std::vector<std::string> groups;  // the call counts for each of them
    // counts only for itself, and ignores the limits of groups and of all
    bool always = false;
  };

  explicit RateLimiter(const Limits& limits) : limits_(limits) {}

  // OK: the call may go on, and End must follow with the same caller. RESOURCE_EXHAUSTED with a
  // RetryInfo: a limit is reached. Callers that have not called for long are forgotten, so memory
  // depends only on active callers.
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
  absl::flat_hash_map<std::string, int> groups_ ABSL_GUARDED_BY(mutex_);  // their open calls
  // open calls of all callers
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_SECURITY_RATE_LIMITER_H_
