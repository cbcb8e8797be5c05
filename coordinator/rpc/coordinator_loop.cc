// The thread that decides.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/synchronization/notification.h"
#include "common/status_macros.h"
#include "coordinator/rpc/coordinator.h"
#include "coordinator/rpc/worker_session.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/store.h"

namespace milepost::coordinator {
namespace {

constexpr absl::Duration kLongestSleep = absl::Seconds(1);
constexpr absl::Duration kPauseAfterFailure = absl::Milliseconds(500);
// Of the time that a scheduling pass took, until the next one.
constexpr double kSchedulePause = 4;
constexpr size_t kMostPending = 1 << 16;
constexpr size_t kLargestBatch = 512;

}  // namespace

void Coordinator::Post(Entry entry) {
  absl::Status refused;
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) {
      refused = absl::UnavailableError("the coordinator is stopping");
    } else if (pending_.size() >= kMostPending) {
      refused =
          absl::ResourceExhaustedError("the coordinator has too much to decide on: try again");
    } else {
      pending_.push_back(std::move(entry));
      if (pending_.size() == 1) wake_.Signal();
      return;
    }
  }
  entry.done(refused);
}

absl::StatusOr<std::string> Coordinator::Do(Entry entry) {
  absl::Notification finished;
  absl::StatusOr<std::string> result;
  entry.done = [&](const absl::StatusOr<std::string>& its) {
    result = its;
    finished.Notify();
  };
  Post(std::move(entry));
  finished.WaitForNotification();
  return result;
}

absl::StatusOr<std::string> Coordinator::Do(Event event) {
  return Do(Entry{.event = [event = std::move(event)] { return event; }});
}

void Coordinator::RunLoop() {
  while (true) {
    const absl::Duration idle = Turn();
    absl::MutexLock lock(&mutex_);
    if (stopping_) break;
    if (pending_.empty() && idle > absl::ZeroDuration()) wake_.WaitWithTimeout(&mutex_, idle);
  }
  std::deque<Entry> rest;
  {
    absl::MutexLock lock(&mutex_);
    rest.swap(pending_);
  }
  for (Entry& entry : rest) entry.done(absl::UnavailableError("the coordinator is stopping"));
}

absl::Duration Coordinator::Turn() {
  if (std::vector<Entry> batch = TakeBatch(); !batch.empty()) DecideBatch(std::move(batch));
  const absl::Time now = absl::Now();
  if (now < pause_until_) return pause_until_ - now;
  absl::Time due;
  {
    absl::ReaderMutexLock lock(&mutex_);
    due = NextDeadline(state_);
  }
  // A time that only a pass can deal with stays due until there was one.
  if (due <= clock_->Now() && !schedule_wanted_) {
    DecideBatch({Entry{.event = [] { return Tick{}; },
                       .done =
                           [this](const auto& result) {
                             if (!result.ok()) pause_until_ = absl::Now() + kPauseAfterFailure;
                           }}});
    return absl::ZeroDuration();
  }
  if (!schedule_wanted_) return std::min(due - clock_->Now(), kLongestSleep);
  // Events that come close together are followed by one pass: passes take a part of the time at
  // most.
  if (now < next_schedule_) return next_schedule_ - now;
  const absl::Status status = Schedule();
  if (!status.ok()) pause_until_ = absl::Now() + kPauseAfterFailure;
  schedule_wanted_ = !status.ok();
  const absl::Time end = absl::Now();
  next_schedule_ = end + kSchedulePause * (end - now);
  return absl::ZeroDuration();
}

std::vector<Coordinator::Entry> Coordinator::TakeBatch() {
  absl::MutexLock lock(&mutex_);
  std::vector<Entry> batch;
  while (!pending_.empty() && batch.size() < kLargestBatch) {
    const bool alone = pending_.front().applied != nullptr;
    if (alone && !batch.empty()) break;
    batch.push_back(std::move(pending_.front()));
    pending_.pop_front();
    if (alone) break;
  }
  return batch;
}

void Coordinator::DecideBatch(std::vector<Entry> batch) {
  std::vector<Event> events;
  std::vector<Entry*> asking;  // whose events they are
  Outcome outcome;
  {
    absl::ReaderMutexLock lock(&mutex_);
    for (Entry& entry : batch) {
      std::optional<Event> event = entry.event();
      if (!event.has_value()) continue;
      events.push_back(*std::move(event));
      asking.push_back(&entry);
    }
    outcome = DecideAll(state_, events, clock_->Now(), options_.config);
  }
  // Entries with `applied` are alone.
  const bool refused = !outcome.status.ok();
  const absl::Status status = events.empty()
                                  ? absl::OkStatus()
                                  : Commit(outcome, refused ? nullptr : asking.front()->applied);
  if (!status.ok() && events.size() > 1) {
    // One of them may need the disk that others do not.
    for (size_t i = 0; i < events.size(); ++i) {
      DecideBatch({Entry{.event = [event = std::move(events[i])] { return event; },
                         .done = std::move(asking[i]->done)}});
      asking[i]->done = nullptr;
    }
  } else {
    schedule_wanted_ = schedule_wanted_ || (status.ok() && outcome.schedule);
    for (size_t i = 0; i < asking.size(); ++i) {
      const EventResult& result = outcome.results[i];
      const absl::Status& first = status.ok() ? result.status : status;
      first.ok() ? asking[i]->done(result.job) : asking[i]->done(first);
      asking[i]->done = nullptr;
    }
  }
  for (Entry& entry : batch) {
    if (entry.done != nullptr) entry.done(std::string());
  }
}

absl::Status Coordinator::Schedule() {
  Outcome outcome;
  {
    absl::ReaderMutexLock lock(&mutex_);
    outcome = DecideSchedule(state_, clock_->Now(), options_.config);
  }
  return Commit(outcome);
}

absl::Status Coordinator::Commit(const Outcome& outcome, const std::function<void()>& applied) {
  if (outcome.NeedsWrite()) {
    if (absl::Status status = store_->Write(outcome); !status.ok()) {
      spdlog::error("a change of state cannot be stored and did not happen: {}",
                    std::string(status.message()));
      return status;
    }
  }
  absl::MutexLock lock(&mutex_);
  for (const auto& [number, record] : outcome.jobs) {
    const v1::JobRecord* before = state_.FindJob(number);
    if (before == nullptr || before->job().state() != record.job().state()) {
      const std::string& detail = record.job().reason_detail();
      spdlog::info("{} is {}, generation {}{}{}", JobName(number),
                   v1::JobState_Name(record.job().state()).substr(10), record.job().generation(),
                   detail.empty() ? "" : ": ", detail);
    }
  }
  state_.Apply(outcome);
  if (applied != nullptr && !stopping_) applied();
  DispatchLocked(outcome);
  return absl::OkStatus();
}

void Coordinator::DispatchLocked(const Outcome& outcome) {
  for (int64_t number : outcome.ended_attempts) {
    rendezvous_.Drop(number);
    const int64_t next = state_.FindJob(number)->job().generation() + 1;
    store_->checkpoints().AbortOlder(JobName(number), next);
  }
  for (const auto& [number, record] : outcome.jobs) ++versions_[number];
  if (outcome.view != nullptr) ++view_version_;
  if (!outcome.jobs.empty() || outcome.view != nullptr) changed_.SignalAll();
  for (const Action& action : outcome.actions) {
    auto session = sessions_.find(action.worker);
    if (session == sessions_.end()) continue;
    if (action.close) {
      spdlog::warn("{}: {}", action.worker, std::string(action.reason.message()));
      session->second->Cut(action.reason);
      sessions_.erase(session);
    } else {
      session->second->Send(action.message);
    }
  }
}

}  // namespace milepost::coordinator
