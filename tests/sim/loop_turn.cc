// The loop's turns: decide, write, apply, send.
#include <algorithm>
#include <utility>

#include "tests/sim/checker.h"
#include "tests/sim/disk.h"
#include "tests/sim/faults.h"
#include "tests/sim/loop.h"

namespace milepost::sim {
namespace {

using coordinator::Action;
using coordinator::Event;
using coordinator::Outcome;

constexpr size_t kLargestBatch = 512;
constexpr absl::Duration kPauseAfterFailure = absl::Milliseconds(500);
constexpr double kSchedulePause = 4;
// Of a scheduling pass, on a busy host.
constexpr absl::Duration kPassTime = absl::Milliseconds(400);
// Of the loop, from which on it counts.
constexpr absl::Duration kDeaf = absl::Milliseconds(1500);
// At a write: that the process dies before it, after it, or while its messages leave.
constexpr double kCrashAtWrite = 4e-4;
constexpr double kCrashAtStart = 4e-3;  // where an attempt begins

}  // namespace

void Loop::Wake() {
  if (turning_ || !up_) return;
  turning_ = true;
  if (asleep_) listened_ = world_.now();
  asleep_ = false;
  ++sleep_;
  world_.events.After(absl::Microseconds(200), [this, epoch = epoch_] {
    if (up_ && epoch == epoch_) Turn();
  });
}

void Loop::Sleep(absl::Time until) {
  turning_ = false;
  if (!pending_.empty()) return Wake();
  asleep_ = true;
  if (until == absl::InfiniteFuture()) return;
  world_.events.At(until, [this, number = ++sleep_] {
    if (number != sleep_ || !up_) return;
    listened_ = world_.now();
    asleep_ = false;
    turning_ = true;
    Turn();
  });
}

void Loop::Turn() {
  left_ = pending_.size();
  DecideNext();
}

void Loop::DecideNext() {
  if (left_ == 0) return AfterWaiting();
  std::vector<Entry> batch = TakeBatch();
  left_ -= batch.size();
  DecideBatch(std::move(batch), [this] { DecideNext(); });
}

std::vector<Loop::Entry> Loop::TakeBatch() {
  std::vector<Entry> batch;
  bool applies = false;
  while (!pending_.empty() && batch.size() < std::min(left_, kLargestBatch)) {
    if (applies && pending_.front().guarded) break;
    applies = applies || pending_.front().applied != nullptr;
    batch.push_back(std::move(pending_.front()));
    pending_.pop_front();
  }
  return batch;
}

// Whoever's heartbeat had to wait for a slow disk is not silent.
void Loop::AfterWaiting() {
  const absl::Duration deaf = world_.now() - std::exchange(listened_, world_.now());
  if (deaf < kDeaf) return WhatIsDue();
  world_.Hit(Probe::kLeasesLengthened);
  std::vector<Entry> batch(1);
  batch[0].event = [deaf] { return coordinator::LeasesLengthened{deaf}; };
  batch[0].done = [](const auto&) {};
  DecideBatch(std::move(batch), [this] { WhatIsDue(); });
}

void Loop::WhatIsDue() {
  if (world_.now() < pause_until_) return Sleep(pause_until_);
  if (TickIfDue()) return;
  if (!schedule_wanted_) return Sleep(std::max(due_, world_.now() + absl::Milliseconds(1)));
  if (world_.now() < next_schedule_) return Sleep(next_schedule_);
  RunPass();
}

bool Loop::TickIfDue() {
  if (due_known_ && due_ > world_.now()) return false;
  due_ = coordinator::NextDeadline(state_);
  due_known_ = true;
  if (due_ > world_.now() || due_ == ticked_) return false;
  ticked_ = due_;
  std::vector<Entry> batch(1);
  batch[0].event = [] { return coordinator::Tick{}; };
  batch[0].done = [this](const auto& result) {
    if (result.ok()) return;
    pause_until_ = world_.now() + kPauseAfterFailure;
    ticked_ = absl::InfinitePast();
  };
  DecideBatch(std::move(batch), [this] { Turn(); });
  return true;
}

// An attempt that began now would begin before what is saved.
void Loop::NoteUnnoted() {
  world_.Hit(Probe::kNotedLate);
  const int64_t job = *unnoted_.begin();
  std::vector<Entry> batch;
  batch.push_back(NoteNewest(job));
  DecideBatch(std::move(batch), [this, job] {
    if (unnoted_.contains(job)) pause_until_ = world_.now() + kPauseAfterFailure;
    Turn();
  });
}

void Loop::RunPass() {
  const bool waits = world_.core->plant() != Plant::kScheduleUnnoted;
  if (waits && !unnoted_.empty()) return NoteUnnoted();
  ++passes_;
  world_.checker->Ticked();
  Outcome outcome = world_.core->Schedule(state_, world_.now());
  Commit(std::move(outcome), {}, [this](const absl::Status& status) {
    if (!status.ok()) pause_until_ = world_.now() + kPauseAfterFailure;
    schedule_wanted_ = !status.ok();
    ticked_ = absl::InfinitePast();
    next_schedule_ = world_.now() + kPassTime * (1 + kSchedulePause);
    Turn();
  });
}

void Loop::DecideBatch(std::vector<Entry> given, Next next) {
  auto batch = std::make_shared<std::vector<Entry>>(std::move(given));
  auto events = std::make_shared<std::vector<Event>>();
  auto asking = std::make_shared<std::vector<Entry*>>();
  for (Entry& entry : *batch) {
    std::optional<Event> event = entry.event();
    if (!event.has_value()) continue;
    events->push_back(*std::move(event));
    asking->push_back(&entry);
  }
  const auto tell_rest = [batch] {
    for (Entry& entry : *batch) {
      if (entry.done != nullptr) std::exchange(entry.done, nullptr)(std::string());
    }
  };
  if (events->empty()) {
    tell_rest();
    return next();
  }
  Outcome outcome = world_.core->Decide(state_, *events, world_.now());
  world_.checker->Decided(state_, *events, outcome);
  std::vector<Entry*> applied;
  for (size_t i = 0; i < asking->size(); ++i) {
    Entry* entry = (*asking)[i];
    if (entry->applied != nullptr && outcome.results[i].status.ok()) applied.push_back(entry);
  }
  const bool schedule = outcome.schedule;
  auto results = outcome.results;
  Commit(std::move(outcome), std::move(applied),
         [this, batch, events, asking, results = std::move(results), schedule, next,
          tell_rest](const absl::Status& status) {
           if (!status.ok() && events->size() > 1) {
             // One of them may need the disk that others do not.
             auto alone = std::make_shared<std::vector<Entry>>(asking->size());
             for (size_t i = 0; i < asking->size(); ++i) {
               Entry& one = (*alone)[i];
               one.event = [event = std::move((*events)[i])] { return event; };
               one.applied = std::move((*asking)[i]->applied);
               one.done = std::exchange((*asking)[i]->done, nullptr);
             }
             tell_rest();
             return DecideAlone(alone, 0, next);
           }
           schedule_wanted_ = schedule_wanted_ || (status.ok() && schedule);
           for (size_t i = 0; i < asking->size(); ++i) {
             const absl::Status& first = status.ok() ? results[i].status : status;
             Done done = std::exchange((*asking)[i]->done, nullptr);
             first.ok() ? done(results[i].job) : done(first);
           }
           tell_rest();
           next();
         });
}

void Loop::DecideAlone(std::shared_ptr<std::vector<Entry>> entries, size_t index, Next next) {
  if (index == entries->size()) return next();
  world_.Hit(Probe::kRefusedAlone);
  std::vector<Entry> one;
  one.push_back(std::move((*entries)[index]));
  DecideBatch(std::move(one),
              [this, entries, index, next] { DecideAlone(entries, index + 1, next); });
}

absl::Duration Loop::WriteTime() {
  const absl::Duration time = world_.random.Time(absl::Milliseconds(1), absl::Milliseconds(8));
  if (world_.disk->slowness > absl::ZeroDuration()) {
    if (world_.disk->slowness > absl::Seconds(1)) world_.Hit(Probe::kSlowWrite);
    return time + world_.disk->slowness;
  }
  return time;
}

bool Loop::CrashNow(Probe probe) {
  world_.Hit(probe);
  Crash();
  return true;
}

void Loop::Commit(Outcome outcome, std::vector<Entry*> applied,
                  std::function<void(absl::Status)> after) {
  if (!outcome.NeedsWrite()) {
    world_.checker->Committed(state_, outcome);
    Land(outcome, applied);
    Dispatch(outcome, outcome.actions.size());
    return after(absl::OkStatus());
  }
  ++writes_;
  const bool starts = !outcome.actions.empty() && outcome.actions[0].message.has_start_rank();
  const bool crashes =
      world_.faults && world_.random.Chance(starts ? kCrashAtStart : kCrashAtWrite);
  const double where = world_.random.Unit();
  const bool early = world_.core->plant() == Plant::kSendBeforeWrite;
  if (early) Dispatch(outcome, outcome.actions.size());
  auto kept = std::make_shared<Outcome>(std::move(outcome));
  world_.events.After(
      WriteTime(), [this, kept, applied = std::move(applied), after = std::move(after), crashes,
                    where, early, epoch = epoch_]() mutable {
        // It died while it wrote: before or after the write landed.
        const bool died = !up_ || epoch != epoch_;
        if (died) return;
        if (crashes && where < 0.3) return void(CrashNow(Probe::kCrashBeforeWrite));
        if (absl::Status status = world_.disk->Write(*kept); !status.ok()) {
          world_.Hit(Probe::kWriteRefused);
          world_.checker->Refused();
          return after(status);
        }
        world_.checker->Committed(state_, *kept);
        if (crashes && where < 0.6) return void(CrashNow(Probe::kCrashAfterWrite));
        Land(*kept, applied);
        const size_t count = kept->actions.size();
        const auto most = crashes ? static_cast<size_t>(static_cast<double>(count) * where) : count;
        if (!early) Dispatch(*kept, most);
        if (crashes) return void(CrashNow(Probe::kCrashWhileSending));
        after(absl::OkStatus());
      });
}

void Loop::Land(const Outcome& outcome, std::vector<Entry*>& applied) {
  for (const auto& [number, record] : outcome.jobs) {
    const v1::JobRecord* old = state_.FindJob(number);
    const bool changed = old != nullptr && old->job().state() != record.job().state();
    if (!changed) continue;
    world_.Note(v1::JobState_Name(record.job().state()).substr(10), number, -1,
                record.job().generation(), record.job().reason());
    world_.strikes->Changed(record);
  }
  state_.Apply(outcome);
  world_.checker->Applied();
  if (outcome.NeedsWrite()) due_known_ = false;
  for (Entry* entry : applied) entry->applied();
}

bool Loop::Dispatch(const Outcome& outcome, size_t most) {
  for (const int64_t number : outcome.ended_attempts) {
    const v1::JobRecord* record = state_.FindJob(number);
    if (record != nullptr) world_.disk->AbortOlder(number, record->job().generation() + 1);
  }
  for (size_t i = 0; i < most; ++i) Send(outcome.actions[i]);
  return true;
}

void Loop::Send(const Action& action) {
  const bool kill = action.message.has_stop_rank() && !action.message.stop_rank().graceful() &&
                    !action.message.stop_rank().abort();
  if (kill && world_.core->plant() == Plant::kDropKill) return;
  world_.checker->Sent(action);
  world_.strikes->Sent(action);
  StreamPtr& session = sessions_[WorkerIndex(action.worker)];
  if (session == nullptr) return;
  if (action.close) {
    world_.Hit(Probe::kLeaseExpiredWhileConnected);
    world_.network->CloseByServer(session);
    session = nullptr;
  } else {
    world_.network->SendDown(session, action.message);
  }
}

}  // namespace milepost::sim
