// The thread that decides.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/synchronization/notification.h"
#include "common/error_details.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "coordinator/metrics/activity.h"
#include "coordinator/rpc/coordinator.h"
#include "coordinator/rpc/worker_session.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/store.h"

namespace milepost::coordinator {
namespace {

constexpr absl::Duration kLongestSleep = absl::Seconds(1);
constexpr absl::Duration kShortestSleep = absl::Milliseconds(1);
// Of the loop, beyond its sleep, from which on it counts.
constexpr absl::Duration kDeafness = absl::Milliseconds(500);
// Between two calls of on_turn.
constexpr absl::Duration kTellEvery = absl::Milliseconds(500);
constexpr absl::Duration kPauseAfterFailure = absl::Milliseconds(500);
// Of the time that a scheduling pass took, until the next one.
constexpr double kSchedulePause = 4;
constexpr size_t kMostPending = 1 << 16;
constexpr size_t kLargestBatch = 512;

}  // namespace

void Coordinator::Post(Entry entry) {
  absl::Status refused;
  {
    absl::MutexLock lock(&post_mutex_);
    if (closed_) {
      refused = Stopping();
    } else if (pending_.size() >= kMostPending) {
      refused = RetryAfter(Refusal(v1::ERROR_REASON_COORDINATOR_BUSY, "",
                                   "the coordinator has too much to decide on: try again"),
                           kPauseAfterFailure);
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
  listened_ = SteadyNow();
  while (true) {
    const absl::Duration idle = Turn();
    TellOfTurn();
    absl::MutexLock lock(&post_mutex_);
    if (closed_) break;
    if (pending_.empty() && idle > absl::ZeroDuration()) wake_.WaitWithTimeout(&post_mutex_, idle);
  }
  std::deque<Entry> rest;
  {
    absl::MutexLock lock(&post_mutex_);
    rest.swap(pending_);
  }
  for (Entry& entry : rest) entry.done(Stopping());
}

void Coordinator::TellOfTurn() {
  const absl::Time now = SteadyNow();
  if (!options_.on_turn || now < told_ + kTellEvery) return;
  told_ = now;
  Load load;
  {
    absl::ReaderMutexLock lock(&mutex_);
    load = {totals_.running(), totals_.waiting(), sessions_.size()};
  }
  options_.on_turn(load);
}

absl::Duration Coordinator::Turn() {
  DecideWaiting();
  const absl::Time now = SteadyNow();
  if (now < pause_until_) return pause_until_ - now;
  EmptyBin();
  if (TickIfDue()) return absl::ZeroDuration();
  if (!schedule_wanted_) {
    return std::min(std::max(due_ - clock_->Now(), kShortestSleep), kLongestSleep);
  }
  // Events that come close together are followed by one pass: passes take a part of the time at
  // most.
  if (now < next_schedule_) return next_schedule_ - now;
  const absl::Status status = Schedule();
  if (!status.ok()) pause_until_ = SteadyNow() + kPauseAfterFailure;
  schedule_wanted_ = !status.ok();
  ticked_ = absl::InfinitePast();
  const absl::Time end = SteadyNow();
  next_schedule_ = end + kSchedulePause * (end - now);
  return absl::ZeroDuration();
}

// All that waits at this moment, and no more: what is due must not wait for those who go on
// posting.
void Coordinator::DecideWaiting() {
  size_t left = 0;
  {
    absl::MutexLock lock(&post_mutex_);
    left = pending_.size();
  }
  while (left > 0) {
    std::vector<Entry> batch = TakeBatch(left);
    left -= batch.size();
    DecideBatch(std::move(batch));
  }
  // Whoever's heartbeat had to wait for a slow disk is not silent.
  const absl::Time now = SteadyNow();
  const absl::Duration deaf = now - listened_;
  listened_ = now;
  if (deaf < kLongestSleep + kDeafness) return;
  spdlog::warn("the coordinator was held up for {}: leases are lengthened by as much",
               absl::FormatDuration(deaf));
  DecideBatch(One(LeasesLengthened{deaf}, [](const auto&) {}));
}

// A worker whose Hello cannot be stored is not silent: no lease ends for a disk that was full.
void Coordinator::LengthenForFailedStore() {
  if (fails_since_ == absl::InfiniteFuture()) return;
  const absl::Time now = SteadyNow();
  DecideBatch(One(LeasesLengthened{now - fails_since_}, [](const auto&) {}));
  fails_since_ = store_fails_ ? now : absl::InfiniteFuture();
  due_known_ = false;
}

bool Coordinator::TickIfDue() {
  LengthenForFailedStore();
  const absl::Time now = clock_->Now();
  if (due_known_ && due_ > now) return false;
  {
    absl::ReaderMutexLock lock(&mutex_);
    due_ = NextDeadline(state_);
  }
  due_known_ = true;
  // A time that only a pass can deal with stays due until there was one.
  if (due_ > now || due_ == ticked_) return false;
  ticked_ = due_;
  DecideBatch(One(Tick{}, [this](const auto& result) {
    if (result.ok()) return;
    pause_until_ = SteadyNow() + kPauseAfterFailure;
    ticked_ = absl::InfinitePast();
  }));
  return true;
}

std::vector<Coordinator::Entry> Coordinator::One(
    Event event, std::function<void(const absl::StatusOr<std::string>&)> done) {
  std::vector<Entry> batch(1);
  batch[0].event = [event = std::move(event)] { return event; };
  batch[0].done = std::move(done);
  return batch;
}

std::vector<Coordinator::Entry> Coordinator::TakeBatch(size_t most) {
  absl::MutexLock lock(&post_mutex_);
  std::vector<Entry> batch;
  bool applies = false;
  while (!pending_.empty() && batch.size() < std::min(most, kLargestBatch)) {
    if (applies && pending_.front().guarded) break;
    applies = applies || pending_.front().applied != nullptr;
    batch.push_back(std::move(pending_.front()));
    pending_.pop_front();
  }
  return batch;
}

void Coordinator::DecideBatch(std::vector<Entry> batch) {
  const absl::Time began = SteadyNow();
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
    outcome = DecideAll(state_, events, clock_->Now(), Values().config);
  }
  std::vector<std::function<void()>> applied;
  for (size_t i = 0; i < asking.size(); ++i) {
    const bool runs = asking[i]->applied != nullptr && outcome.results[i].status.ok();
    if (runs) applied.push_back(asking[i]->applied);
  }
  const absl::Status status = events.empty() ? absl::OkStatus() : Commit(outcome, applied);
  if (!events.empty()) activity_->Decided(SteadyNow() - began);
  if (!status.ok() && events.size() > 1) {
    // One of them may need the disk that others do not.
    for (size_t i = 0; i < events.size(); ++i) {
      std::vector<Entry> one = One(std::move(events[i]), std::exchange(asking[i]->done, nullptr));
      one[0].applied = std::move(asking[i]->applied);
      DecideBatch(std::move(one));
    }
  } else {
    schedule_wanted_ = schedule_wanted_ || (status.ok() && outcome.schedule);
    for (size_t i = 0; i < asking.size(); ++i) {
      const EventResult& result = outcome.results[i];
      const absl::Status& first = status.ok() ? result.status : status;
      const auto done = std::exchange(asking[i]->done, nullptr);
      first.ok() ? done(result.job) : done(first);
    }
  }
  for (Entry& entry : batch) {
    if (entry.done != nullptr) entry.done(std::string());
  }
}

absl::Status Coordinator::Schedule() {
  const absl::Time began = SteadyNow();
  MP_RETURN_IF_ERROR(NoteUnnoted());
  Outcome outcome;
  {
    absl::ReaderMutexLock lock(&mutex_);
    outcome = DecideSchedule(state_, clock_->Now(), Values().config);
  }
  const absl::Status status = Commit(outcome);
  activity_->Scheduled(SteadyNow() - began);
  return status;
}

// Of jobs that end with this decision.
std::vector<StoredDelivery> Coordinator::MessagesOf(const Outcome& outcome) {
  std::vector<StoredDelivery> messages;
  if (options_.listener == nullptr) return messages;
  for (const int64_t number : outcome.durable_jobs) {
    const v1::Job& job = outcome.jobs.at(number).job();
    if (!IsTerminal(job.state())) continue;
    {
      absl::ReaderMutexLock lock(&mutex_);
      const v1::JobRecord* before = state_.FindJob(number);
      if (before != nullptr && IsTerminal(before->job().state())) continue;
    }
    for (v1::WebhookDelivery& message : options_.listener->MessagesFor(job)) {
      messages.push_back({next_delivery_++, std::move(message)});
    }
  }
  return messages;
}

// What was not delivered before the coordinator's restart. Numbers are never used again: they go on
// from the time.
absl::Status Coordinator::SendStored() {
  if (options_.listener == nullptr) return absl::OkStatus();
  MP_ASSIGN_OR_RETURN(const std::vector<StoredDelivery> stored, store_->LoadDeliveries());
  next_delivery_ = static_cast<uint64_t>(absl::ToUnixMicros(absl::Now()));
  for (const StoredDelivery& message : stored) {
    next_delivery_ = std::max(next_delivery_, message.number + 1);
    options_.listener->Send(message.number, message.delivery);
  }
  return absl::OkStatus();
}

absl::Status Coordinator::Commit(Outcome& outcome,
                                 const std::vector<std::function<void()>>& applied) {
  // Before the write too: one that was stopped for longer than its lease finds workers silent that
  // were not, and the next one would inherit that.
  MP_RETURN_IF_ERROR(MayAct());
  const std::vector<StoredDelivery> messages = MessagesOf(outcome);
  if (outcome.NeedsWrite()) {
    const absl::Time began = SteadyNow();
    absl::Status status = store_->Write(outcome, messages);
    activity_->Wrote(SteadyNow() - began, status.ok());
    if (store_watch_.Wrote(status, SteadyNow()) && options_.on_broken_store) {
      options_.on_broken_store(status);
    }
    if (!status.ok()) {
      spdlog::error("a change of state cannot be stored and did not happen: {}",
                    std::string(status.message()));
      if (!store_fails_) fails_since_ = SteadyNow();
      store_fails_ = true;
      return status;
    }
    store_fails_ = false;
  }
  // And only now: what was written before somebody else could be elected is there for the other.
  MP_RETURN_IF_ERROR(MayAct());
  for (const StoredDelivery& message : messages) {
    options_.listener->Send(message.number, message.delivery);
  }
  std::set<std::string> released;  // checkpoints that a job began with, or will not any more
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [number, record] : outcome.jobs) {
      const v1::JobRecord* before = state_.FindJob(number);
      if (before == nullptr || before->job().state() != record.job().state()) {
        const std::string& detail = record.job().reason_detail();
        spdlog::info("{} is {}, generation {}{}{}", JobName(number),
                     v1::JobState_Name(record.job().state()).substr(10), record.job().generation(),
                     detail.empty() ? "" : ": ", detail);
      }
      if (before == nullptr || !AwaitedCheckpoint(record).empty()) continue;
      if (std::string name = AwaitedCheckpoint(*before); !name.empty()) released.insert(name);
    }
    for (const auto& [number, record] : outcome.jobs) RememberLocked(number, record);
    for (const int64_t number : outcome.durable_jobs) {
      const v1::JobRecord& record = outcome.jobs.at(number);
      activity_->JobChanged(state_.FindJob(number), record);
      totals_.Stored(number, record);
    }
    for (const int64_t number : outcome.deleted_jobs) ForgetLocked(number);
    curves_.Take(std::move(outcome.reports), outcome.deleted_jobs);
    state_.Apply(std::move(outcome));
    // What is only renewed comes due later than is known.
    if (outcome.NeedsWrite()) due_known_ = false;
    for (const std::function<void()>& apply : applied) {
      if (!stopping_) apply();
    }
    DispatchLocked(outcome);
  }
  RetainReleased(released);
  return absl::OkStatus();
}

void Coordinator::DispatchLocked(const Outcome& outcome) {
  for (int64_t number : outcome.ended_attempts) {
    rendezvous_.Drop(number);
    const v1::JobRecord* record = state_.FindJob(number);
    if (record == nullptr) continue;  // deleted since: it had ended before
    const int64_t next = record->job().generation() + 1;
    store_->checkpoints().AbortOlder(JobName(number), next);
  }
  for (const auto& [number, record] : outcome.jobs) {
    ++versions_[number];
    waits_.Wake(number);
  }
  for (const int64_t number : outcome.deleted_jobs) waits_.Wake(number);
  if (outcome.view != nullptr) {  // who waits, and why
    ++view_version_;
    waits_.WakeAll();
  }
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
