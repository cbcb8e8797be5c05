// What users do to jobs that are there, and administrators to workers.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/error_details.h"
#include "tests/sim/agent.h"
#include "tests/sim/checker.h"
#include "tests/sim/clients.h"
#include "tests/sim/coordinator.h"

namespace milepost::sim {
namespace {

using coordinator::Event;
using coordinator::IsTerminal;
using coordinator::JobName;
using coordinator::State;

// In which a repetition of what was answered may still come.
constexpr absl::Duration kRepetitions = absl::Minutes(1);
constexpr absl::Duration kBetweenDrains = absl::Minutes(50);
constexpr absl::Duration kBetweenDeletions = absl::Minutes(20);

}  // namespace

void Clients::Cancel(JobTruth* truth) {
  truth->cancel_asked = true;
  Call(
      [truth](const State&) -> std::optional<Event> {
        return coordinator::JobCancelled{JobName(truth->number)};
      },
      [truth](const auto& result) {
        if (result.ok()) truth->cancel_answered = true;
      });
}

void Clients::Suspend(JobTruth* truth) {
  if (truth->cancel_asked || std::exchange(truth->suspend_asked, true)) return;
  Call(
      [truth](const State&) -> std::optional<Event> {
        if (truth->cancel_asked) return std::nullopt;
        return coordinator::JobSuspended{JobName(truth->number)};
      },
      [this, truth](const auto& result) {
        if (!result.ok()) {  // it has ended
          truth->suspend_asked = false;
          return;
        }
        truth->suspend_answered = true;
        const absl::Duration pause = world_.random.LogTime(absl::Seconds(1), absl::Hours(1));
        world_.events.After(pause, [this, truth] { Resume(truth, /*ended=*/false); });
      });
}

void Clients::Resume(JobTruth* truth, bool ended) {
  if (ended) {
    ++truth->resumes_asked;
    world_.coordinator->Note(truth->number);
  }
  truth->suspend_answered = false;
  const std::string request = absl::StrCat("c", ++calls_);
  Call(
      [this, truth, request, ended](const State& state) -> std::optional<Event> {
        if (truth->cancel_asked) return std::nullopt;
        const v1::JobRecord* record = state.FindJob(truth->number);
        const bool over = record == nullptr || IsTerminal(record->job().state());
        if (over != ended &&
            !(ended && record != nullptr && coordinator::HasResumed(*record, request))) {
          MayAskAgain(truth);
          return std::nullopt;
        }
        return coordinator::JobResumed{JobName(truth->number), request, std::nullopt};
      },
      [this, truth](const auto&) { MayAskAgain(truth); });
}

void Clients::MayAskAgain(JobTruth* truth) {
  world_.events.After(kRepetitions, [truth] { truth->suspend_asked = false; });
}

void Clients::Update(JobTruth* truth) {
  const int64_t number = truth->number;
  const int priority = static_cast<int>(world_.random.Int(-3, 3));
  auto version = std::make_shared<int64_t>(-1);
  Call(
      [number, priority, version](const State& state) -> std::optional<Event> {
        const v1::JobRecord* record = state.FindJob(number);
        if (record == nullptr) return std::nullopt;
        // What it was when it was asked first: of a repetition the etag says whether it was done.
        if (*version < 0) *version = record->scheduling_version();
        v1::SchedulingSpec scheduling = record->job().spec().scheduling();
        scheduling.set_priority(priority);
        return coordinator::JobUpdated{JobName(number), coordinator::EtagOf(*version), scheduling};
      },
      [this, truth, version](const auto& result) {
        if (result.ok()) truth->update_version = std::max(truth->update_version, *version + 1);
        if (absl::IsAborted(result.status())) world_.Hit(Probe::kUpdateConflict);
      });
}

void Clients::Meddle(int64_t job, int worker) {
  const auto found = world_.by_number.find(job);
  if (!world_.faults || found == world_.by_number.end() || !found->second->acknowledged) return;
  switch (world_.random.Int(0, 5)) {
    case 0:
      return Cancel(found->second);
    case 1:
    case 2:
      return Suspend(found->second);
    case 3:
      return Update(found->second);
    default:
      if (worker < 0) return;
      return Drain(worker, absl::ZeroDuration(),
                   world_.random.LogTime(absl::Minutes(1), absl::Hours(1)));
  }
}

// ---- workers ----

void Clients::DrainSome() {
  if (!world_.faults) return;
  world_.events.After(world_.random.Until(kBetweenDrains), [this] { DrainSome(); });
  const int worker = static_cast<int>(world_.random.Int(0, world_.options.workers - 1));
  const absl::Duration deadline = world_.random.Chance(0.4)
                                      ? absl::ZeroDuration()
                                      : world_.random.LogTime(absl::Seconds(10), absl::Hours(1));
  Drain(worker, deadline, world_.random.LogTime(absl::Minutes(5), absl::Hours(4)));
}

void Clients::Drain(int worker, absl::Duration deadline, absl::Duration time) {
  const std::string name = WorkerName(worker);
  const absl::Time at = world_.now() + deadline;
  if (std::find(drained_.begin(), drained_.end(), worker) != drained_.end()) return;
  drained_.push_back(worker);
  Call(
      [this, name, at](const State& state) -> std::optional<Event> {
        for (const int64_t number : state.WithRanksOn(name)) {
          if (state.FindJob(number)->ending() == v1::ATTEMPT_ENDING_RESIZE)
            world_.Hit(Probe::kResizeWhileDraining);
        }
        return coordinator::WorkerDrained{name, "maintenance", at};
      },
      [this, worker, time](const auto& result) {
        if (result.ok()) world_.checker->DrainAnswered(worker, true);
        world_.events.After(time, [this, worker] { EndDrain(worker); });
      });
}

void Clients::EndDrain(int worker) {
  if (std::find(drained_.begin(), drained_.end(), worker) == drained_.end()) return;
  world_.checker->DrainAnswered(worker, false);
  Call([name = WorkerName(worker)](
           const State&) -> std::optional<Event> { return coordinator::WorkerResumed{name}; },
       [this, worker](const auto&) {
         world_.events.After(kRepetitions, [this, worker] { std::erase(drained_, worker); });
       });
}

// Whoever is down, if somebody is.
void Clients::DeleteSome() {
  if (!world_.faults) return;
  world_.events.After(world_.random.Until(kBetweenDeletions), [this] { DeleteSome(); });
  if (!world_.coordinator->up()) return;
  for (const auto& [name, record] : world_.coordinator->state().workers()) {
    const int worker = WorkerIndex(name);
    if (record.worker().state() != v1::WORKER_STATE_DOWN) continue;
    if (std::find(drained_.begin(), drained_.end(), worker) != drained_.end()) continue;
    drained_.push_back(worker);
    return Call(
        [name = name](const State&) -> std::optional<Event> {
          return coordinator::WorkerDeleted{name};
        },
        [this, worker](const auto& result) {
          if (result.ok()) world_.Hit(Probe::kDeleted);
          if (ReasonOf(result.status()) == v1::ERROR_REASON_WORKER_NOT_DOWN) {
            world_.Hit(Probe::kDeletedWhenBack);
          }
          world_.events.After(kRepetitions, [this, worker] { std::erase(drained_, worker); });
        });
  }
}

// ---- the end ----

void Clients::Settle() {
  for (const int worker : std::vector<int>(drained_)) EndDrain(worker);
  for (const auto& truth : world_.jobs) {
    if (truth->acknowledged) Resume(truth.get(), /*ended=*/false);
  }
  MakeQueues();  // without limits
}

void Clients::CancelWhatCannotRun() {
  const State& state = world_.coordinator->state();
  for (const int64_t number : state.active()) {
    const v1::JobRecord& record = *state.FindJob(number);
    const auto* waiting = coordinator::FindWaiting(*state.queue_view(), number,
                                                   record.job().spec().resources().device());
    const bool cannot =
        waiting != nullptr && (waiting->code == coordinator::WaitCode::kFailedDependency ||
                               waiting->code == coordinator::WaitCode::kTooFewSlots ||
                               waiting->code == coordinator::WaitCode::kTooFarLimit);
    const bool suspended = record.job().state() == v1::JOB_STATE_SUSPENDED;
    const auto truth = world_.by_number.find(number);
    if (truth == world_.by_number.end()) continue;
    if (cannot) Cancel(truth->second);
    if (suspended) Resume(truth->second, /*ended=*/false);
  }
}

}  // namespace milepost::sim
