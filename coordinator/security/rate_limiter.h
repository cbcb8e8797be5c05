// How much one caller may do: calls a second, and calls at the same time. Pure but for its own
// counts; time is an argument. Thread-safe.
//
//   auto admitted = limiter.Begin("tokens/ab", now);
//   if (!admitted.ok()) ...      // RESOURCE_EXHAUSTED; RetryAfter(status) says when
//   limiter.End("tokens/ab");
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
};

// RESOURCE_EXHAUSTED with a google.rpc.RetryInfo.
absl::Status RetryLater(const std::string& message, absl::Duration after);

class RateLimiter {
 public:
  explicit RateLimiter(const Limits& limits) : limits_(limits) {}

  // OK: the call may go on, and End must follow. Callers that have not called for long are
  // forgotten, so that memory is bounded by those that do.
  absl::Status Begin(const std::string& caller, absl::Time now);
  void End(const std::string& caller);

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
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_SECURITY_RATE_LIMITER_H_
