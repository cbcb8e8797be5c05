#include "coordinator/loop/loop.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/error_details.h"
#include "common/status_macros.h"

namespace milepost::coordinator {
namespace {

constexpr absl::Duration kShortestSleep = absl::Milliseconds(1);
// Of the loop, beyond its sleep, from which on it counts.
constexpr absl::Duration kDeafness = absl::Milliseconds(500);
constexpr absl::Duration kPauseAfterFailure = absl::Milliseconds(500);
// Of the time that a scheduling pass took, until the next one.
constexpr double kSchedulePause = 4;
constexpr size_t kLargestBatch = 512;

}  // namespace

absl::Status Stopping() {
  return Refusal(v1::ERROR_REASON_COORDINATOR_STOPPING, "", "the coordinator is stopping");
}

// ---- by any thread ----

void Loop::Post(Entry entry) {
  absl::Status refused;
  bool wake = false;
  {
    absl::MutexLock lock(&post_mutex_);
    if (closed_) {
      refused = Stopping();
    } else if (posted_.size() >= most_waiting_) {
      refused = RetryAfter(Refusal(v1::ERROR_REASON_COORDINATOR_BUSY, "",
                                   "the coordinator has too much to decide on: try again"),
                           kPauseAfterFailure);
    } else {
      posted_.push_back(std::move(entry));
      wake = std::exchange(asleep_, false);
    }
  }
  if (!refused.ok()) return entry.done(refused);
  if (wake) host_.Wake();
}

Loop::Entry Loop::NoteNewest(const std::string& job) {
  Entry entry;
  entry.event = [this, job]() -> std::optional<Event> {
    unnoted_.insert(JobNumber(job));
    return host_.NewestCheckpoint(job);
  };
  // Not where a newer one was published after this had been asked for.
  entry.applied = [this, job] {
    const v1::JobRecord* record = own_state().FindJob(JobNumber(job));
    const bool noted = record == nullptr ||
                       record->job().latest_checkpoint() == host_.NewestCheckpoint(job).newest;
    if (noted) unnoted_.erase(JobNumber(job));
  };
  entry.done = [](const auto&) {};
  return entry;
}

void Loop::Close() {
  absl::MutexLock lock(&post_mutex_);
  closed_ = true;
}

bool Loop::closed() const {
  absl::MutexLock lock(&post_mutex_);
  return closed_;
}

// ---- a turn ----

void Loop::Load(State state) {
  absl::MutexLock lock(&mutex_);
  state_ = std::move(state);
}

Loop::Next Loop::Begin(std::vector<Event> events,
                       absl::AnyInvocable<void(const absl::Status&)> done) {
  Decision decision;
  decision.events = std::move(events);
  {
    absl::ReaderMutexLock lock(&mutex_);
    decision.outcome = host_.Decide(state_, decision.events, host_.Now());
  }
  decision.committed = std::move(done);
  Commit(std::move(decision));
  return {deciding_.has_value() ? Next::kWrite : Next::kStep, {}};
}

Loop::Next Loop::Step() {
  while (!deciding_.has_value()) {
    switch (stage_) {
      case Stage::kBegin:
        BeginTurn();
        stage_ = Stage::kWaiting;
        break;
      case Stage::kWaiting:
        if (!DecideNext()) stage_ = Stage::kListened;
        break;
      case Stage::kListened:
        stage_ = Stage::kDue;
        LengthenIfHeldUp();
        break;
      case Stage::kDue:
        if (const absl::Duration pause = pause_until_ - host_.Steady();
            pause > absl::ZeroDuration()) {
          return EndTurn(pause);
        }
        stage_ = Stage::kTick;
        LengthenForFailedStore();
        break;
      case Stage::kTick:
        stage_ = TickIfDue() ? Stage::kAgain : Stage::kSchedule;
        break;
      case Stage::kSchedule: {
        if (!schedule_wanted_) {
          return EndTurn(std::max(due_ - host_.Now(), kShortestSleep));
        }
        // Events that come close together are followed by one pass: passes take a part of the time
        // at most.
        const absl::Duration wait = next_schedule_ - host_.Steady();
        if (wait > absl::ZeroDuration()) return EndTurn(wait);
        BeginPass();
        stage_ = Stage::kNote;
        break;
      }
      case Stage::kNote:
        NoteOrPass();
        break;
      case Stage::kAgain:
        return EndTurn(absl::ZeroDuration());
    }
  }
  return {Next::kWrite, {}};
}

// All that waits at this moment, and no more: what is due must not wait for those who go on
// posting.
void Loop::BeginTurn() {
  absl::MutexLock lock(&post_mutex_);
  asleep_ = false;
  left_ = posted_.size();
  if (listened_ == absl::InfiniteFuture()) listened_ = host_.Steady();
}

// Under one lock with the look at what waits: a post either is seen here or wakes.
Loop::Next Loop::EndTurn(absl::Duration idle) {
  stage_ = Stage::kBegin;
  if (idle <= absl::ZeroDuration()) return {Next::kStep, {}};
  absl::MutexLock lock(&post_mutex_);
  if (!posted_.empty()) return {Next::kSleep, absl::ZeroDuration()};
  asleep_ = true;
  return {Next::kSleep, std::min(idle, kLongestSleep)};
}

bool Loop::DecideNext() {
  if (!alone_.empty()) {
    std::vector<Entry> batch;
    batch.push_back(std::move(alone_.front()));
    alone_.pop_front();
    Decide(std::move(batch));
    return true;
  }
  if (left_ == 0) return false;
  std::vector<Entry> batch = TakeBatch();
  left_ -= batch.size();
  Decide(std::move(batch));
  return true;
}

std::vector<Loop::Entry> Loop::TakeBatch() {
  absl::MutexLock lock(&post_mutex_);
  std::vector<Entry> batch;
  bool applies = false;
  while (!posted_.empty() && batch.size() < std::min(left_, kLargestBatch)) {
    if (applies && posted_.front().guarded) break;
    applies = applies || posted_.front().applied != nullptr;
    batch.push_back(std::move(posted_.front()));
    posted_.pop_front();
  }
  return batch;
}

std::vector<Loop::Entry> Loop::One(
    Event event, absl::AnyInvocable<void(const absl::StatusOr<std::string>&)> done) {
  std::vector<Entry> batch(1);
  batch[0].event = [event = std::move(event)] { return event; };
  batch[0].done = std::move(done);
  return batch;
}

// Whoever's heartbeat had to wait for a slow disk is not silent.
void Loop::LengthenIfHeldUp() {
  const absl::Time now = host_.Steady();
  const absl::Duration deaf = now - std::exchange(listened_, now);
  if (deaf < kLongestSleep + kDeafness) return;
  host_.HeldUp(deaf);
  Decide(One(LeasesLengthened{deaf}, [](const auto&) {}));
}

// A worker whose Hello cannot be stored is not silent: no lease ends for a disk that was full.
void Loop::LengthenForFailedStore() {
  if (fails_since_ == absl::InfiniteFuture()) return;
  const absl::Time now = host_.Steady();
  const absl::Duration failed = now - fails_since_;
  fails_since_ = store_fails_ ? now : absl::InfiniteFuture();
  due_known_ = false;
  Decide(One(LeasesLengthened{failed}, [](const auto&) {}));
}

bool Loop::TickIfDue() {
  const absl::Time now = host_.Now();
  if (due_known_ && due_ > now) return false;
  due_ = NextDeadline(own_state());
  due_known_ = true;
  // A time that only a pass can deal with stays due until there was one.
  if (due_ > now || due_ == ticked_) return false;
  ticked_ = due_;
  Decide(One(Tick{}, [this](const auto& result) {
    if (result.ok()) return;
    pause_until_ = host_.Steady() + kPauseAfterFailure;
    ticked_ = absl::InfinitePast();
  }));
  return true;
}

// ---- scheduling passes ----

void Loop::BeginPass() {
  pass_began_ = host_.Steady();
  to_note_.assign(unnoted_.begin(), unnoted_.end());
  noted_ = absl::OkStatus();
}

// One at a time: of a full disk one complaint is enough.
void Loop::NoteOrPass() {
  if (!noted_.ok()) {
    EndPass(noted_);
    stage_ = Stage::kAgain;
  } else if (to_note_.empty()) {
    stage_ = Stage::kAgain;
    Pass();
  } else {
    std::vector<Entry> batch;
    batch.push_back(NoteNewest(JobName(to_note_.front())));
    batch[0].done = [this](const auto& result) { noted_ = result.status(); };
    to_note_.pop_front();
    Decide(std::move(batch));
  }
}

void Loop::Pass() {
  Decision decision;
  decision.began = host_.Steady();
  {
    absl::ReaderMutexLock lock(&mutex_);
    decision.outcome = host_.Schedule(state_, host_.Now());
  }
  decision.committed = [this, began = decision.began](const absl::Status& status) {
    host_.ScheduledIn(host_.Steady() - began);
    EndPass(status);
  };
  Commit(std::move(decision));
}

void Loop::EndPass(const absl::Status& status) {
  const absl::Time now = host_.Steady();
  if (!status.ok()) pause_until_ = now + kPauseAfterFailure;
  schedule_wanted_ = !status.ok();
  ticked_ = absl::InfinitePast();
  next_schedule_ = now + kSchedulePause * (now - pass_began_);
}

// ---- from entries to answers ----

void Loop::Decide(std::vector<Entry> batch) {
  Decision decision;
  decision.began = host_.Steady();
  decision.batch = std::move(batch);
  {
    absl::ReaderMutexLock lock(&mutex_);
    for (size_t i = 0; i < decision.batch.size(); ++i) {
      std::optional<Event> event = decision.batch[i].event();
      if (!event.has_value()) continue;
      decision.events.push_back(*std::move(event));
      decision.asking.push_back(i);
    }
    if (!decision.events.empty()) {
      decision.outcome = host_.Decide(state_, decision.events, host_.Now());
    }
  }
  decision.events.empty() ? Finish(std::move(decision), absl::OkStatus())
                          : Commit(std::move(decision));
}

void Loop::Commit(Decision decision) {
  // Before the write too: one that was stopped for longer than its lease finds workers silent that
  // were not, and the next one would inherit that.
  absl::Status status = host_.MayAct();
  if (status.ok() && decision.outcome.NeedsWrite()) {
    deciding_ = std::move(decision);
    return;
  }
  if (status.ok()) status = Land(&decision);
  Finish(std::move(decision), status);
}

void Loop::Wrote(const absl::Status& status) {
  Decision decision = *std::exchange(deciding_, std::nullopt);
  if (!status.ok() && !store_fails_) fails_since_ = host_.Steady();
  store_fails_ = !status.ok();
  const absl::Status landed = status.ok() ? Land(&decision) : status;
  Finish(std::move(decision), landed);
}

absl::Status Loop::Land(Decision* decision) {
  Outcome& outcome = decision->outcome;
  // And only now: what was written before somebody else could be elected is there for the other.
  MP_RETURN_IF_ERROR(host_.MayAct());
  host_.Durable(own_state(), outcome);
  {
    absl::MutexLock lock(&mutex_);
    host_.Landing(state_, &outcome);
    // What is only renewed comes due later than is known.
    if (outcome.NeedsWrite()) due_known_ = false;
    state_.Take(&outcome);
    for (size_t i = 0; i < decision->asking.size(); ++i) {
      auto& applied = decision->batch[decision->asking[i]].applied;
      if (applied != nullptr && outcome.results[i].status.ok()) applied();
    }
    host_.Dispatch(state_, outcome);
  }
  host_.Landed();
  return absl::OkStatus();
}

void Loop::Finish(Decision decision, const absl::Status& status) {
  if (decision.committed != nullptr) return decision.committed(status);
  if (!decision.events.empty()) host_.DecidedIn(host_.Steady() - decision.began);
  if (!status.ok() && decision.events.size() > 1) {
    DecideEachAlone(&decision);
  } else {
    schedule_wanted_ = schedule_wanted_ || (status.ok() && decision.outcome.schedule);
    for (size_t i = 0; i < decision.asking.size(); ++i) {
      const EventResult& result = decision.outcome.results[i];
      const absl::Status& first = status.ok() ? result.status : status;
      auto done = std::exchange(decision.batch[decision.asking[i]].done, nullptr);
      first.ok() ? done(result.job) : done(first);
    }
  }
  // Who had nothing to decide any more.
  for (Entry& entry : decision.batch) {
    if (entry.done != nullptr) entry.done(std::string());
  }
}

// One of them may need the disk that others do not.
void Loop::DecideEachAlone(Decision* decision) {
  for (size_t i = 0; i < decision->asking.size(); ++i) {
    Entry& entry = decision->batch[decision->asking[i]];
    Entry& alone = alone_.emplace_back();
    alone.event = [event = std::move(decision->events[i])] { return event; };
    alone.applied = std::move(entry.applied);
    alone.done = std::exchange(entry.done, nullptr);
  }
}

void Loop::End() {
  std::deque<Entry> rest;
  {
    absl::MutexLock lock(&post_mutex_);
    rest.swap(posted_);
  }
  for (Entry& entry : rest) entry.done(Stopping());
}

}  // namespace milepost::coordinator
