#include "coordinator/rpc/planning_room.h"

#include "absl/time/time.h"
#include "common/error_details.h"

namespace milepost::coordinator {
namespace {

// How soon one that waits notices that its caller has gone.
constexpr absl::Duration kPoll = absl::Milliseconds(100);
constexpr absl::Duration kRetry = absl::Seconds(1);

}  // namespace

absl::Status PlanningRoom::Enter(const std::string& who, const StillWanted& still_wanted) {
  absl::MutexLock lock(&mutex_);
  if (calls_ >= kMostCalls || (!who.empty() && callers_[who].calls >= kMostCallsOfOne)) {
    return RetryAfter(
        Refusal(v1::ERROR_REASON_RATE_LIMITED, who,
                "too many jobs are being planned already: submit this one again in some seconds, "
                "or several as one array"),
        kRetry);
  }
  ++calls_;
  ++callers_[who].calls;
  while (true) {
    absl::Status wanted = still_wanted();
    if (!wanted.ok()) {
      GoneLocked(who);
      return wanted;
    }
    if (MayEnterLocked(who)) break;
    left_.WaitWithTimeout(&mutex_, kPoll);
  }
  ++plans_;
  callers_[who].plans = true;
  return absl::OkStatus();
}

void PlanningRoom::Leave(const std::string& who) {
  absl::MutexLock lock(&mutex_);
  --plans_;
  callers_[who].plans = false;
  GoneLocked(who);
  left_.SignalAll();
}

bool PlanningRoom::MayEnterLocked(const std::string& who) const {
  return plans_ < kPlansAtOnce && (who.empty() || !callers_.at(who).plans);
}

void PlanningRoom::GoneLocked(const std::string& who) {
  --calls_;
  if (--callers_[who].calls == 0) callers_.erase(who);
}

}  // namespace milepost::coordinator
