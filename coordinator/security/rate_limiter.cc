#include "coordinator/security/rate_limiter.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/error_details.h"

namespace milepost::coordinator {
namespace {

constexpr size_t kManyBuckets = 4096;
constexpr absl::Duration kBusyRetry = absl::Seconds(1);

absl::Status RetryLater(const std::string& caller, const std::string& message,
                        absl::Duration after) {
  return RetryAfter(Refusal(v1::ERROR_REASON_RATE_LIMITED, caller, message), after);
}

}  // namespace

absl::Status RateLimiter::Begin(const Caller& caller, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  if (buckets_.size() >= kManyBuckets && !buckets_.contains(caller.name)) Forget(now);
  const auto [it, added] = buckets_.try_emplace(caller.name);
  Bucket& bucket = it->second;
  if (added) {
    bucket.tokens = limits_.burst;
    bucket.filled = now;
  }
  const double passed = std::max(0.0, absl::ToDoubleSeconds(now - bucket.filled));
  bucket.tokens = std::min(limits_.burst, bucket.tokens + passed * limits_.calls_per_second);
  bucket.filled = std::max(bucket.filled, now);
  if (bucket.calls >= limits_.calls_at_once) {
    return RetryLater(caller.name,
                      absl::StrCat(caller.name, " has ", bucket.calls,
                                   " calls and streams open, which is the limit"),
                      kBusyRetry);
  }
  for (const std::string& group : caller.groups) {
    const auto its = groups_.find(group);
    if (caller.always || its == groups_.end() || its->second < limits_.group_calls_at_once)
      continue;
    return RetryLater(group,
                      absl::StrCat("all callers of ", group, " together have ", its->second,
                                   " calls and streams open, which is the limit"),
                      kBusyRetry);
  }
  if (calls_ >= limits_.all_calls_at_once && !caller.always) {
    return RetryLater("all callers",
                      absl::StrCat("all callers together have ", calls_,
                                   " calls and streams open, which is the limit"),
                      kBusyRetry);
  }
  if (bucket.tokens < 1) {
    const double missing = (1 - bucket.tokens) / limits_.calls_per_second;
    return RetryLater(
        caller.name,
        absl::StrCat(caller.name, " makes more than ", limits_.calls_per_second, " calls a second"),
        absl::Seconds(missing));
  }
  bucket.tokens -= 1;
  ++bucket.calls;
  if (caller.always) return absl::OkStatus();
  for (const std::string& group : caller.groups) ++groups_[group];
  ++calls_;
  return absl::OkStatus();
}

void RateLimiter::End(const Caller& caller) {
  absl::MutexLock lock(&mutex_);
  const auto found = buckets_.find(caller.name);
  if (found == buckets_.end()) return;
  --found->second.calls;
  if (caller.always) return;
  --calls_;
  for (const std::string& group : caller.groups) {
    const auto its = groups_.find(group);
    if (its != groups_.end() && --its->second == 0) groups_.erase(its);
  }
}

// A bucket that would be full by now says nothing that a new one would not.
void RateLimiter::Forget(absl::Time now) {
  const absl::Duration full = absl::Seconds(limits_.burst / limits_.calls_per_second);
  absl::erase_if(buckets_, [&](const auto& entry) {
    return entry.second.calls == 0 && now - entry.second.filled >= full;
  });
}

}  // namespace milepost::coordinator
