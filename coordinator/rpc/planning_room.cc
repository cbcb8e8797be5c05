#include "coordinator/rpc/planning_room.h"

#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include "common/error_details.h"
#include "common/status_macros.h"

namespace milepost::coordinator {
namespace {

// How soon one that waits notices that its caller has gone.
constexpr absl::Duration kPoll = absl::Milliseconds(100);
constexpr absl::Duration kRetry = absl::Seconds(1);

absl::Status TooMany(const std::string& who) {
  return RetryAfter(
      Refusal(v1::ERROR_REASON_RATE_LIMITED, who,
              "too many jobs are being planned already: submit this one again in some seconds, "
              "or several as one array"),
      kRetry);
}

// Whose users count together; of other callers each one alone.
std::string ProjectOf(const std::string& who) { return who.substr(0, who.find("/users/")); }

}  // namespace

absl::StatusOr<uint64_t> PlanningRoom::Enter(const std::string& who,
                                             const StillWanted& still_wanted) {
  absl::MutexLock lock(&mutex_);
  const std::string project = ProjectOf(who);
  MP_RETURN_IF_ERROR(MakePlaceLocked(who, project));
  const uint64_t id = ++last_;
  Call& call = calls_[id];
  call = {.who = who, .project = project};
  const auto [its, added] = callers_.try_emplace(who);
  if (added) its->second.last_turn = id;  // who comes anew passes nobody who waits
  ++its->second.calls;
  ++of_project_[project];
  while (true) {
    absl::Status wanted = call.displaced ? TooMany(who) : still_wanted();
    if (!wanted.ok()) {
      RemoveLocked(id);
      return wanted;
    }
    const auto next = NextLocked();
    if (next != calls_.end() && next->first == id) break;
    changed_.WaitWithTimeout(&mutex_, kPoll);
  }
  call.plans = true;
  ++plans_;
  Caller& caller = callers_[who];
  ++caller.plans;
  caller.last_turn = ++last_;
  if (plans_ < kPlansAtOnce) changed_.SignalAll();  // the next may have looked before
  return id;
}

void PlanningRoom::Leave(uint64_t entered) {
  absl::MutexLock lock(&mutex_);
  RemoveLocked(entered);
}

absl::Status PlanningRoom::MakePlaceLocked(const std::string& who, const std::string& project) {
  const auto caller = callers_.find(who);
  const int own = caller == callers_.end() ? 0 : caller->second.calls;
  if (!who.empty() && own >= kMostCallsOfOne) return TooMany(who);
  // Those who are displaced have a place until they notice.
  int calls = 0;
  for (const auto& [id, call] : calls_) calls += call.displaced ? 0 : 1;
  if (calls < kMostCalls) return absl::OkStatus();
  const auto most = std::max_element(
      of_project_.begin(), of_project_.end(),
      [](const auto& one, const auto& other) { return one.second < other.second; });
  const auto its = of_project_.find(project);
  if (most->second <= 1 + (its == of_project_.end() ? 0 : its->second)) return TooMany(who);
  for (auto call = calls_.rbegin(); call != calls_.rend(); ++call) {
    const bool waits = !call->second.plans && !call->second.displaced;
    if (!waits || call->second.project != most->first) continue;
    call->second.displaced = true;
    --most->second;
    changed_.SignalAll();
    return absl::OkStatus();
  }
  return TooMany(who);
}

PlanningRoom::Calls::iterator PlanningRoom::NextLocked() {
  auto next = calls_.end();
  if (plans_ >= kPlansAtOnce) return next;
  uint64_t longest_ago = 0;
  for (auto call = calls_.begin(); call != calls_.end(); ++call) {
    if (call->second.plans || call->second.displaced) continue;
    const Caller& caller = callers_.at(call->second.who);
    if (!call->second.who.empty() && caller.plans > 0) continue;
    if (next != calls_.end() && caller.last_turn >= longest_ago) continue;
    next = call;
    longest_ago = caller.last_turn;
  }
  return next;
}

void PlanningRoom::RemoveLocked(uint64_t id) {
  const auto call = calls_.find(id);
  Caller& caller = callers_.at(call->second.who);
  if (call->second.plans) {
    --plans_;
    --caller.plans;
  }
  if (--caller.calls == 0) callers_.erase(call->second.who);
  const auto project = of_project_.find(call->second.project);
  // A displaced one is counted no more.
  if (project != of_project_.end() && !call->second.displaced && --project->second == 0) {
    of_project_.erase(project);
  }
  calls_.erase(call);
  changed_.SignalAll();
}

}  // namespace milepost::coordinator
