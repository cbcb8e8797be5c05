#include "coordinator/security/rate_limiter.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "milepost/v1/error_details.pb.h"

namespace milepost::coordinator {
namespace {

constexpr size_t kManyBuckets = 4096;
constexpr absl::Duration kBusyRetry = absl::Seconds(1);

}  // namespace

absl::Status RetryLater(const std::string& message, absl::Duration after) {
  v1::RetryInfo info;
  info.mutable_retry_delay()->set_seconds(absl::ToInt64Seconds(after));
  info.mutable_retry_delay()->set_nanos(static_cast<int32_t>(
      absl::ToInt64Nanoseconds(after - absl::Seconds(absl::ToInt64Seconds(after)))));
  v1::RpcStatus details;
  details.set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  details.set_message(message);
  google::protobuf::Any* any = details.add_details();
  any->set_type_url("type.googleapis.com/google.rpc.RetryInfo");
  any->set_value(info.SerializeAsString());
  absl::Status status = absl::ResourceExhaustedError(message);
  status.SetPayload("type.googleapis.com/google.rpc.Status",
                    absl::Cord(details.SerializeAsString()));
  return status;
}

absl::Status RateLimiter::Begin(const std::string& caller, absl::Time now, bool always) {
  absl::MutexLock lock(&mutex_);
  if (buckets_.size() >= kManyBuckets && !buckets_.contains(caller)) Forget(now);
  const auto [it, added] = buckets_.try_emplace(caller);
  Bucket& bucket = it->second;
  if (added) {
    bucket.tokens = limits_.burst;
    bucket.filled = now;
  }
  const double passed = std::max(0.0, absl::ToDoubleSeconds(now - bucket.filled));
  bucket.tokens = std::min(limits_.burst, bucket.tokens + passed * limits_.calls_per_second);
  bucket.filled = std::max(bucket.filled, now);
  if (bucket.calls >= limits_.calls_at_once) {
    return RetryLater(
        absl::StrCat(caller, " has ", bucket.calls, " calls and streams open, which is the limit"),
        kBusyRetry);
  }
  if (calls_ >= limits_.all_calls_at_once && !always) {
    return RetryLater(absl::StrCat("all callers together have ", calls_,
                                   " calls and streams open, which is the limit"),
                      kBusyRetry);
  }
  if (bucket.tokens < 1) {
    const double missing = (1 - bucket.tokens) / limits_.calls_per_second;
    return RetryLater(
        absl::StrCat(caller, " makes more than ", limits_.calls_per_second, " calls a second"),
        absl::Seconds(missing));
  }
  bucket.tokens -= 1;
  ++bucket.calls;
  if (!always) ++calls_;
  return absl::OkStatus();
}

void RateLimiter::End(const std::string& caller, bool always) {
  absl::MutexLock lock(&mutex_);
  const auto found = buckets_.find(caller);
  if (found == buckets_.end()) return;
  --found->second.calls;
  if (!always) --calls_;
}

// A bucket that would be full by now says nothing that a new one would not.
void RateLimiter::Forget(absl::Time now) {
  const absl::Duration full = absl::Seconds(limits_.burst / limits_.calls_per_second);
  absl::erase_if(buckets_, [&](const auto& entry) {
    return entry.second.calls == 0 && now - entry.second.filled >= full;
  });
}

}  // namespace milepost::coordinator
