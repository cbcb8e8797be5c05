#include "tests/sim/plants.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "common/proto_time.h"

namespace milepost::sim {
namespace {

using coordinator::Action;
using coordinator::Event;
using coordinator::IsTerminal;
using coordinator::JobName;
using coordinator::JobNumber;
using coordinator::Outcome;
using coordinator::State;

constexpr std::array<const char*, static_cast<size_t>(Plant::kCount)> kNames = {
    "none",
    "send-before-write",
    "acknowledge-unsynced",
    "no-lease-extension",
    "forget-generation",
    "forget-ranks",
    "forget-request",
    "forget-cancel",
    "forget-drain",
    "forget-stale",
    "double-slot",
    "partial-gang",
    "over-limit",
    "drop-kill",
    "early-finish",
    "accept-old-report",
    "accept-old-progress",
    "accept-old-stream",
    "accept-old-commit",
    "free-failures",
    "charge-preemption",
    "ignore-dependencies",
    "forget-time-held",
    "forget-checkpoint",
    "schedule-unnoted",
    "starve",
    "preempt-by-turns",
    "resurrect",
    "ignore-exclusion",
    "lost-wake",
    "early-answer",
    "half-applied",
    "failed-write-done",
    "early-fence",
    "act-when-deposed",
    "drop-post",
    "ignore-guard",
    "late-applied",
};

// Which jobs a bug that hits some of them hits.
bool IsUnlucky(int64_t number) { return number % 7 == 0; }

}  // namespace

const char* PlantName(Plant plant) { return kNames[static_cast<size_t>(plant)]; }

std::optional<Plant> PlantNamed(absl::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<Plant>(i);
  }
  return std::nullopt;
}

std::vector<Plant> AllPlants() {
  std::vector<Plant> all;
  for (size_t i = 1; i < kNames.size(); ++i) all.push_back(static_cast<Plant>(i));
  return all;
}

Outcome Core::Decide(const State& state, std::vector<Event>& events, absl::Time now) const {
  if (plant_ == Plant::kNone) return DecideAll(state, events, now, config_);
  ChangeEvents(state, events);
  Outcome outcome = DecideAll(state, events, now, config_);
  Change(state, outcome);
  return outcome;
}

Outcome Core::Schedule(const State& state, absl::Time now) const {
  if (plant_ == Plant::kOverLimit || plant_ == Plant::kIgnoreDependencies ||
      plant_ == Plant::kIgnoreExclusion) {
    State blind = state;
    for (const auto& [name, record] : state.workers()) {
      if (plant_ != Plant::kIgnoreExclusion || !record.worker().has_exclusion()) continue;
      v1::WorkerRecord taken = record;
      taken.mutable_worker()->clear_exclusion();
      blind.PutWorker(std::move(taken));
    }
    for (const auto& [id, record] : state.queues()) {
      if (plant_ != Plant::kOverLimit) break;
      v1::QueueRecord unlimited = record;
      for (v1::SlotQuota& quota : *unlimited.mutable_queue()->mutable_quotas()) quota.clear_limit();
      blind.PutQueue(std::move(unlimited));
    }
    for (const int64_t number : state.active()) {
      const v1::JobRecord& record = *state.FindJob(number);
      if (plant_ != Plant::kIgnoreDependencies ||
          record.job().spec().scheduling().depends_on().empty())
        continue;
      v1::JobRecord free = record;
      free.mutable_job()->mutable_spec()->mutable_scheduling()->clear_depends_on();
      blind.PutJob(std::move(free));
    }
    return DecideSchedule(blind, now, config_);
  }
  Outcome outcome = DecideSchedule(state, now, config_);
  if (plant_ == Plant::kNone) return outcome;
  ChangeStarts(state, outcome);
  Change(state, outcome);
  return outcome;
}

void Core::ChangeEvents(const State& state, std::vector<Event>& events) const {
  for (Event& event : events) {
    auto* reported = std::get_if<coordinator::RankReported>(&event);
    auto* progressed = std::get_if<coordinator::RankProgressed>(&event);
    if (reported != nullptr && plant_ == Plant::kAcceptOldReport) {
      const v1::JobRecord* record = state.FindJob(JobNumber(reported->report.job()));
      const int rank = reported->report.rank();
      if (record != nullptr && rank < record->ranks_size()) {
        reported->report.set_generation(record->job().generation());
        reported->worker = record->ranks(rank).worker();
      }
    }
    if (progressed != nullptr && plant_ == Plant::kAcceptOldProgress) {
      const v1::JobRecord* record = state.FindJob(JobNumber(progressed->progress.job()));
      if (record != nullptr && !record->ranks().empty() && progressed->progress.rank() == 0) {
        progressed->progress.set_generation(record->job().generation());
        progressed->worker = record->ranks(0).worker();
      }
    }
  }
}

void Core::ChangeJob(const v1::JobRecord* before, v1::JobRecord& record) const {
  const int had = before == nullptr ? 0 : before->job().failures();
  v1::Job* job = record.mutable_job();
  switch (plant_) {
    case Plant::kFreeFailures:
      if (job->failures() > had) job->set_failures(had);
      break;
    case Plant::kChargePreemption:
      if (before != nullptr && job->preemptions() > before->job().preemptions()) {
        job->set_failures(job->failures() + 1);
      }
      break;
    case Plant::kEarlyFinish:
      if (record.ending() == v1::ATTEMPT_ENDING_NONE) break;
      for (const v1::RankRecord& rank : record.ranks()) {
        if (!rank.gone()) continue;
        for (v1::RankRecord& other : *record.mutable_ranks()) other.set_gone(true);
        break;
      }
      break;
    case Plant::kPreemptByTurns:
      if (before != nullptr && job->preemptions() > before->job().preemptions()) {
        job->mutable_spec()->mutable_scheduling()->set_priority(1000);
      }
      break;
    case Plant::kResurrect:
      if (before != nullptr && !IsTerminal(before->job().state()) &&
          job->state() == v1::JOB_STATE_CANCELLED && IsUnlucky(JobNumber(job->name()))) {
        job->set_state(v1::JOB_STATE_QUEUED);
      }
      break;
    default:
      break;
  }
}

void Core::Change(const State& state, Outcome& outcome) const {
  for (auto& [number, record] : outcome.jobs) ChangeJob(state.FindJob(number), record);
  if (plant_ != Plant::kForgetStale) return;
  for (auto& [name, record] : outcome.workers) record.clear_stale();
}

void Core::ChangeStarts(const State& state, Outcome& outcome) const {
  for (auto& [number, record] : outcome.jobs) {
    const v1::JobRecord* before = state.FindJob(number);
    const bool starts = before != nullptr && before->ranks().empty() && !record.ranks().empty();
    if (!starts || !IsUnlucky(number)) continue;
    if (plant_ == Plant::kStarve) {
      record = *before;
      std::erase_if(outcome.actions, [&number = number](const Action& action) {
        return action.message.has_start_rank() &&
               action.message.start_rank().job() == JobName(number);
      });
    } else if (plant_ == Plant::kPartialGang && record.ranks_size() > 1) {
      record.mutable_ranks()->RemoveLast();
    } else if (plant_ == Plant::kDoubleSlot) {
      // That of another job on the same worker.
      v1::RankRecord& rank = *record.mutable_ranks(0);
      for (const int64_t other : state.WithRanksOn(rank.worker())) {
        for (const v1::RankRecord& held : state.FindJob(other)->ranks()) {
          if (held.worker() == rank.worker() && !held.gone()) rank.set_slot(held.slot());
        }
      }
      for (Action& action : outcome.actions) {
        v1::StartRank* start =
            action.message.has_start_rank() ? action.message.mutable_start_rank() : nullptr;
        if (start == nullptr || start->job() != JobName(number) || start->rank() != 0) continue;
        start->set_slot(rank.slot());
      }
    }
  }
}

}  // namespace milepost::sim
