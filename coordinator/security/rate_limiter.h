// How much one caller may do: calls a second, and calls at the same time; and how many calls all
// of them may have open. Pure but for its own counts; time is an argument. Thread-safe.
//
//   auto admitted = limiter.Begin("users/alice", now);
//   if (!admitted.ok()) ...      // RESOURCE_EXHAUSTED with a RetryInfo
//   limiter.End("users/alice");
#ifndef MILEPOST_COORDINATOR_SECURITY_RATE_LIMITER_H_
#define MILEPOST_COORDINATOR_SECURITY_RATE_LIMITER_H_

#include <string>

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
  // Of all callers together. The server has a thread for each call that lasts, and those of ranks
  // and of whoever administers the cluster must find one.
  int all_calls_at_once = 768;
};

class RateLimiter {
 public:
  explicit RateLimiter(const Limits& limits) : limits_(limits) {}

  // OK: the call may go on, and End must follow. Callers that have not called for long are
  // forgotten, so that memory is bounded by those that do. `always`: not one of all of them; End
  // must say the same.
  absl::Status Begin(const std::string& caller, absl::Time now, bool always = false);
  void End(const std::string& caller, bool always = false);

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
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;  // of all
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_SECURITY_RATE_LIMITER_H_
