#include "tests/sim/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/checker.h"
#include "tests/sim/disk.h"
#include "tests/sim/faults.h"

namespace milepost::sim {
namespace {

using coordinator::Action;
using coordinator::Event;
using coordinator::JobName;
using coordinator::JobNumber;
using coordinator::Loop;
using coordinator::Outcome;
using coordinator::State;

constexpr absl::Duration kRestartPause = absl::Seconds(2);
// Until a thread that was woken runs, and goes around its loop once.
constexpr absl::Duration kWakeTime = absl::Microseconds(200);
// Posts that wait before kDropPost drops one.
constexpr int kMostBeforeDrop = 4;
// Of a scheduling pass, on a busy host.
constexpr absl::Duration kPassTime = absl::Milliseconds(400);
// At a write: that the process dies before it, after it, or while its messages leave.
constexpr double kCrashAtWrite = 4e-4;
constexpr double kCrashAtStart = 4e-3;  // where an attempt begins

}  // namespace

Coordinator::Coordinator(World& world)
    : world_(world),
      loop_(std::make_unique<Loop>(this)),
      sessions_(static_cast<size_t>(world.options.workers)) {}

// ---- the process ----

void Coordinator::Start() {
  if (up_) return;
  starting_ = std::make_unique<Loop>(this);
  starting_->Load(world_.disk->Load());
  std::vector<Event> events;
  for (const int64_t number : starting_->own_state().active()) {
    events.push_back(NewestCheckpoint(JobName(number)));
  }
  if (!Planted(Plant::kNoLeaseExtension)) {
    events.push_back(coordinator::CoordinatorRestarted{});
  }
  fate_ = {};
  deposed_ = false;
  waiting_ = 0;
  asked_.clear();
  const Loop::Next next = starting_->Begin(std::move(events), [](const auto&) {});
  if (next.what == Loop::Next::kWrite) {
    const absl::Status written = world_.disk->Write(starting_->writing());
    starting_->Wrote(written);
  }
  if (!up_) {
    starting_.reset();
    world_.events.After(kRestartPause, [this] { Start(); });
    return;
  }
  loop_ = std::move(starting_);
  StepAfter(kWakeTime);
}

void Coordinator::Crash() {
  if (!up_) return;
  world_.Note("coordinator dies", 0, -1, epoch_);
  ++world_.result.crashes;
  if (world_.disk->open() > 0) world_.Hit(Probe::kCrashInUpload);
  up_ = false;
  busy_ = {};
  ++step_;
  sessions_.assign(sessions_.size(), nullptr);
  world_.disk->Crash();
  world_.network->CoordinatorDied();
  Random& random = world_.random;
  const absl::Duration down = random.LogTime(absl::Milliseconds(200), absl::Minutes(10));
  world_.events.After(world_.faults ? down : absl::Seconds(1), [this] { Start(); });
}

void Coordinator::CrashNow(Probe probe) {
  world_.Hit(probe);
  Crash();
}

void Coordinator::Wake() {
  if (Planted(Plant::kLostWake) && ++wakes_ % 7 == 0) return;
  StepAfter(kWakeTime);
}

void Coordinator::StepAfter(absl::Duration delay) {
  world_.events.After(delay, [this, number = ++step_] {
    if (number == step_ && up_) Run();
  });
}

void Coordinator::Run() {
  while (true) {
    const Loop::Next next = loop_->Step();
    if (!up_) return;
    const absl::Duration busy = std::exchange(busy_, absl::ZeroDuration());
    if (next.what == Loop::Next::kWrite) return WriteAfter(busy);
    if (next.what == Loop::Next::kSleep) return StepAfter(std::max(next.at_most, kWakeTime));
    if (busy <= absl::ZeroDuration()) continue;
    free_since_ = world_.now() + busy;
    return StepAfter(busy);
  }
}

absl::Duration Coordinator::WriteTime() {
  const absl::Duration time = world_.random.Time(absl::Milliseconds(1), absl::Milliseconds(8));
  if (world_.disk->slowness > absl::ZeroDuration()) {
    if (world_.disk->slowness > absl::Seconds(1)) world_.Hit(Probe::kSlowWrite);
    return time + world_.disk->slowness;
  }
  return time;
}

void Coordinator::WriteAfter(absl::Duration busy) {
  ++writes_;
  const Outcome& outcome = loop_->writing();
  const bool starts = !outcome.actions.empty() && outcome.actions[0].message.has_start_rank();
  fate_.dies = world_.faults && world_.random.Chance(starts ? kCrashAtStart : kCrashAtWrite);
  fate_.where = world_.random.Unit();
  fate_.sent_early = Planted(Plant::kSendBeforeWrite);
  if (fate_.sent_early) SendAll(outcome);
  world_.events.After(busy + WriteTime(), [this, epoch = epoch_] {
    if (!up_ || epoch != epoch_) return;  // it died while it wrote
    if (fate_.dies && fate_.where < 0.3) return CrashNow(Probe::kCrashBeforeWrite);
    const Outcome& outcome = loop_->writing();
    absl::Status status = world_.disk->Write(outcome);
    free_since_ = world_.now();
    if (status.ok()) {
      world_.checker->Committed(state(), outcome);
      if (fate_.dies && fate_.where < 0.45) return CrashNow(Probe::kCrashAfterWrite);
      deposed_ = fate_.dies && fate_.where < 0.6;
    } else if (Planted(Plant::kFailedWriteDone)) {
      status = absl::OkStatus();
    } else {
      fate_.dies = false;
      world_.Hit(Probe::kWriteRefused);
      if (outcome.results.size() > 1) world_.Hit(Probe::kRefusedAlone);
      world_.checker->Refused();
    }
    loop_->Wrote(status);
    if (deposed_) return CrashNow(Probe::kDeposed);
    if (up_) Run();
  });
}

// ---- what the loop has around it ----

Outcome Coordinator::Decide(const State& state, std::vector<Event>& events, absl::Time now) {
  Outcome outcome = world_.core->Decide(state, events, now);
  if (starting_ != nullptr) return outcome;
  world_.checker->Decided(state, events, outcome);
  std::vector<Done> asked = std::exchange(asked_, {});
  for (size_t i = 0; i < asked.size(); ++i) {
    const coordinator::EventResult& result = outcome.results[i];
    result.status.ok() ? asked[i](result.job) : asked[i](result.status);
  }
  return outcome;
}

absl::Status Coordinator::MayAct() {
  if (!deposed_ || Planted(Plant::kActWhenDeposed)) return absl::OkStatus();
  return absl::UnavailableError("another coordinator serves");
}

Outcome Coordinator::Schedule(const State& state, absl::Time now) {
  ++passes_;
  busy_ += kPassTime;
  world_.checker->Ticked();
  return world_.core->Schedule(state, now);
}

coordinator::CheckpointsChanged Coordinator::NewestCheckpoint(const std::string& job) {
  if (Planted(Plant::kForgetCheckpoint)) {
    const v1::JobRecord* record = state().FindJob(JobNumber(job));
    if (record == nullptr) return {job, "", 0};
    return {job, record->job().latest_checkpoint(), record->newest_step()};
  }
  const auto newest = world_.disk->Newest(JobNumber(job));
  if (!newest) return {job, "", 0};
  return {job, absl::StrCat("checkpoints/", newest->number), newest->step};
}

void Coordinator::Durable(const State& before, const Outcome& outcome) {
  if (starting_ != nullptr) {
    up_ = true;
    ++epoch_;
    up_since_ = world_.now();
    world_.Note("coordinator starts", 0, -1, epoch_);
    world_.checker->Loaded(state(), before);
    world_.checker->Committed(before, outcome);
  } else if (!outcome.NeedsWrite()) {
    world_.checker->Committed(before, outcome);
  }
}

void Coordinator::Landing(const State& before, Outcome* outcome) {
  if (starting_ != nullptr) return;
  if (Planted(Plant::kHalfApplied) && outcome->jobs.size() > 1) {
    outcome->jobs.erase(std::prev(outcome->jobs.end()));
  }
  for (const auto& [number, record] : outcome->jobs) {
    const v1::JobRecord* old = before.FindJob(number);
    const bool changed = old != nullptr && old->job().state() != record.job().state();
    if (!changed) continue;
    world_.Note(v1::JobState_Name(record.job().state()).substr(10), number, -1,
                record.job().generation(), record.job().reason());
    world_.strikes->Changed(record);
  }
}

void Coordinator::Dispatch(const State&, const Outcome& outcome) {
  world_.checker->Applied();
  if (starting_ != nullptr) return;  // nobody is there
  if (deposed_) world_.checker->ActedWhenDeposed();
  if (!outcome.NeedsWrite() || !fate_.sent_early) SendAll(outcome);
  if (outcome.NeedsWrite() && fate_.dies) CrashNow(Probe::kCrashWhileSending);
}

void Coordinator::SendAll(const Outcome& outcome) {
  for (const int64_t number : outcome.ended_attempts) {
    const v1::JobRecord* record = state().FindJob(number);
    if (record != nullptr) world_.disk->AbortOlder(number, record->job().generation() + 1);
  }
  size_t most = outcome.actions.size();
  if (outcome.NeedsWrite() && fate_.dies && !fate_.sent_early) {
    most = static_cast<size_t>(static_cast<double>(most) * fate_.where);
  }
  for (size_t i = 0; i < most; ++i) Send(outcome.actions[i]);
}

void Coordinator::Send(const Action& action) {
  const bool kill = action.message.has_stop_rank() && !action.message.stop_rank().graceful() &&
                    !action.message.stop_rank().abort();
  if (kill && Planted(Plant::kDropKill)) return;
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

// ---- what is posted ----

void Coordinator::Post(Entry entry) {
  if (!up_ || (Planted(Plant::kDropPost) && waiting_ >= kMostBeforeDrop)) return;
  if (Planted(Plant::kIgnoreGuard)) entry.guarded = false;
  auto done = std::make_shared<Done>(std::move(entry.done));
  auto decided = std::make_shared<bool>(false);
  const auto answer = [this, epoch = epoch_, done,
                       decided](const absl::StatusOr<std::string>& result) {
    if (!up_ || epoch != epoch_ || *done == nullptr) return;
    if (deposed_ && *decided && result.ok()) world_.checker->ActedWhenDeposed();
    if (!deposed_) std::exchange(*done, nullptr)(result);
  };
  ++waiting_;
  entry.event = [this, posted = world_.now(), answer, decided,
                 event = std::move(entry.event)]() mutable -> std::optional<Event> {
    --waiting_;
    world_.checker->LookedAt(std::max(posted, free_since_));
    std::optional<Event> its = event();
    *decided = its.has_value();
    if (its.has_value() && Planted(Plant::kEarlyAnswer)) asked_.emplace_back(answer);
    return its;
  };
  entry.done = answer;
  loop_->Post(std::move(entry));
}

void Coordinator::Do(Event event, Done done) {
  Post({.event = [event = std::move(event)] { return event; }, .done = std::move(done)});
}

void Coordinator::Note(int64_t job) {
  if (up_) Post(loop_->NoteNewest(JobName(job)));
}

void Coordinator::Receive(const StreamPtr& stream, v1::WorkerMessage message) {
  const std::string name = WorkerName(stream->worker);
  Event event;
  switch (message.message_case()) {
    case v1::WorkerMessage::kHello:
      return Attach(stream, message.hello());
    case v1::WorkerMessage::kRankReport:
      event = coordinator::RankReported{name, std::move(*message.mutable_rank_report())};
      break;
    case v1::WorkerMessage::kProgress:
      event = coordinator::RankProgressed{name, std::move(*message.mutable_progress())};
      break;
    case v1::WorkerMessage::kHealthReport:
      event = coordinator::HealthReported{name, std::move(*message.mutable_health_report())};
      break;
    case v1::WorkerMessage::kLeaving:
      event = coordinator::WorkerLeaving{name, message.leaving().reason()};
      break;
    default: {
      const auto& devices = message.heartbeat().devices();
      event = coordinator::WorkerHeartbeat{name, {devices.begin(), devices.end()}};
    }
  }
  Entry entry;
  entry.guarded = true;
  entry.event = [this, stream, event = std::move(event)]() -> std::optional<Event> {
    const StreamPtr& current = sessions_[stream->worker];
    const bool is_current = current == stream;
    if (!is_current && current != nullptr) world_.Hit(Probe::kMessageOfOldStream);
    if (!is_current && !Planted(Plant::kAcceptOldStream)) return std::nullopt;
    return event;
  };
  entry.done = [this, stream](const absl::StatusOr<std::string>& result) {
    if (!result.ok()) world_.network->CloseByServer(stream);
  };
  Post(std::move(entry));
}

void Coordinator::Attach(const StreamPtr& stream, const v1::Hello& hello) {
  Entry entry;
  entry.event = [hello] { return coordinator::WorkerHello{hello}; };
  const auto take_over = [this, stream] {
    v1::CoordinatorMessage welcome;
    welcome.mutable_welcome()->set_lease_seconds(absl::ToDoubleSeconds(world_.config.lease));
    world_.network->SendDown(stream, std::move(welcome));
    stream->welcomed = true;
    StreamPtr before = std::exchange(sessions_[stream->worker], stream);
    if (before == nullptr || before == stream) return;
    world_.Hit(Probe::kHelloReplacesStream);
    world_.network->CloseByServer(before);
  };
  const bool late = Planted(Plant::kLateApplied);
  entry.applied = [late, take_over] {
    if (!late) take_over();
  };
  entry.done = [this, stream, late, take_over](const absl::StatusOr<std::string>& result) {
    if (!result.ok()) return world_.network->CloseByServer(stream);
    if (late) take_over();
  };
  Post(std::move(entry));
  if (const StreamPtr& before = sessions_[stream->worker]; before != nullptr) {
    world_.strikes->Replacing(before);
  }
}

void Coordinator::Detach(const StreamPtr& stream) {
  const std::string name = WorkerName(stream->worker);
  Entry entry;
  entry.guarded = true;
  entry.event = [this, name, stream]() -> std::optional<Event> {
    if (sessions_[stream->worker] != stream) return std::nullopt;
    return coordinator::WorkerStreamLost{name};
  };
  entry.applied = [this, stream] { sessions_[stream->worker] = nullptr; };
  entry.done = [](const auto&) {};
  Post(std::move(entry));
}

absl::Status Coordinator::CheckGeneration(int64_t job, int64_t generation) const {
  const v1::JobRecord* record = state().FindJob(job);
  if (record == nullptr) return absl::NotFoundError("no such job");
  if (Planted(Plant::kAcceptOldCommit)) return absl::OkStatus();
  if (record->job().generation() == generation && !record->ranks().empty()) return absl::OkStatus();
  return absl::AbortedError("that generation is over");
}

void Coordinator::Commit(int64_t job, int64_t generation, int64_t number, Done done) {
  if (const absl::Status claimed = world_.disk->Claim(job, number); !claimed.ok()) {
    return done(claimed);
  }
  if (const v1::JobRecord* record = state().FindJob(job)) world_.strikes->Committing(*record);
  // Its manifest is written.
  const absl::Duration time =
      world_.random.LogTime(absl::Milliseconds(5), absl::Seconds(2)) + world_.disk->slowness;
  world_.events.After(time,
                      [this, job, generation, number, early = CheckGeneration(job, generation),
                       done = std::move(done), epoch = epoch_]() mutable {
                        if (up_ && epoch == epoch_)
                          Publish(job, generation, number, early, std::move(done));
                      });
}

void Coordinator::Publish(int64_t job, int64_t generation, int64_t number,
                          const absl::Status& early, Done done) {
  auto status = std::make_shared<absl::Status>();
  Entry publish = loop_->NoteNewest(JobName(job));
  publish.event = [this, job, generation, number, status, early,
                   note = std::move(publish.event)]() mutable -> std::optional<Event> {
    *status = Planted(Plant::kEarlyFence) ? early : CheckGeneration(job, generation);
    if (status->ok()) *status = world_.disk->Commit(job, number);
    if (!status->ok()) {
      world_.disk->Drop(job, number);
      return std::nullopt;
    }
    world_.checker->Saved(job, generation, number);
    world_.strikes->Saved();
    if (Planted(Plant::kScheduleUnnoted)) return NewestCheckpoint(JobName(job));
    return note();
  };
  publish.done = [this, job, status, done = std::move(done)](const auto& noted) mutable {
    if (!status->ok()) return done(*status);
    if (!noted.ok()) world_.Hit(Probe::kNotedLate);
    world_.disk->Retain(job, 2);
    done(std::string());
  };
  Post(std::move(publish));
}

}  // namespace milepost::sim
