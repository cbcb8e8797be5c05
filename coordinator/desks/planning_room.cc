#include "coordinator/desks/planning_room.h"

#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include "common/error_details.h"
#include "common/status_macros.h"

namespace milepost::coordinator {
namespace {

// How soon one that waits notices that its caller has gone.
constexpr absl::Duration kLookForTurn = absl::Milliseconds(100);
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
  turns_.try_emplace(who, id);  // who comes anew passes nobody who waits
  while (true) {
    absl::Status wanted = call.state == Call::kDisplaced ? TooMany(who) : still_wanted();
    if (!wanted.ok()) {
      RemoveLocked(id);
      return wanted;
    }
    if (NextLocked() == id) break;
    changed_.WaitWithTimeout(&mutex_, kLookForTurn);
  }
  call.state = Call::kPlans;
  turns_[who] = ++last_;
  changed_.SignalAll();  // there may be place for the next
  return id;
}

void PlanningRoom::Leave(uint64_t entered) {
  absl::MutexLock lock(&mutex_);
  RemoveLocked(entered);
}

absl::Status PlanningRoom::MakePlaceLocked(const std::string& who, const std::string& project) {
  int all = 0, own = 0;
  std::map<std::string, int> of_project = {{project, 0}};
  for (const auto& [id, call] : calls_) {
    own += call.who == who ? 1 : 0;
    // Those who are displaced have a place until they notice.
    if (call.state == Call::kDisplaced) continue;
    ++all;
    ++of_project[call.project];
  }
  if (!who.empty() && own >= kMostCallsOfOne) return TooMany(who);
  if (all < kMostCalls) return absl::OkStatus();
  const auto most = std::max_element(
      of_project.begin(), of_project.end(),
      [](const auto& one, const auto& other) { return one.second < other.second; });
  if (most->second <= of_project[project] + 1) return TooMany(who);
  for (auto call = calls_.rbegin(); call != calls_.rend(); ++call) {
    if (call->second.state != Call::kWaits || call->second.project != most->first) continue;
    call->second.state = Call::kDisplaced;
    changed_.SignalAll();
    return absl::OkStatus();
  }
  return TooMany(who);
}

bool PlanningRoom::PlansLocked(const std::string& who) const {
  return std::any_of(calls_.begin(), calls_.end(), [&](const auto& entry) {
    return entry.second.state == Call::kPlans && entry.second.who == who;
  });
}

uint64_t PlanningRoom::NextLocked() const {
  const auto plans = std::count_if(calls_.begin(), calls_.end(), [](const auto& entry) {
    return entry.second.state == Call::kPlans;
  });
  if (plans >= kPlansAtOnce) return 0;
  uint64_t next = 0, longest_ago = 0;
  for (const auto& [id, call] : calls_) {
    if (call.state != Call::kWaits || (!call.who.empty() && PlansLocked(call.who))) continue;
    const uint64_t turn = turns_.at(call.who);
    if (next != 0 && turn >= longest_ago) continue;
    next = id;
    longest_ago = turn;
  }
  return next;
}

void PlanningRoom::RemoveLocked(uint64_t id) {
  const std::string who = calls_.at(id).who;
  calls_.erase(id);
  const bool more = std::any_of(calls_.begin(), calls_.end(),
                                [&](const auto& entry) { return entry.second.who == who; });
  if (!more) turns_.erase(who);
  changed_.SignalAll();
}

}  // namespace milepost::coordinator
