#include "tests/sim/loop.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/checker.h"
#include "tests/sim/disk.h"
#include "tests/sim/faults.h"

namespace milepost::sim {
namespace {

using coordinator::Event;
using coordinator::JobName;
using coordinator::Outcome;

constexpr absl::Duration kRestartPause = absl::Seconds(2);

}  // namespace

void Loop::Start() {
  if (up_) return;
  coordinator::State loaded = world_.disk->Load();
  std::vector<Event> events;
  for (const int64_t number : loaded.active()) events.push_back(NewestCheckpoint(number));
  if (world_.core->plant() != Plant::kNoLeaseExtension) {
    events.push_back(coordinator::CoordinatorRestarted{});
  }
  const Outcome outcome = world_.core->Decide(loaded, events, world_.now());
  if (!world_.disk->Write(outcome).ok()) {
    world_.events.After(kRestartPause, [this] { Start(); });
    return;
  }
  up_ = true;
  ++epoch_;
  up_since_ = world_.now();
  world_.Note("coordinator starts", 0, -1, epoch_);
  world_.checker->Loaded(state_, loaded);
  state_ = std::move(loaded);
  world_.checker->Committed(state_, outcome);
  state_.Apply(outcome);
  world_.checker->Applied();
  due_known_ = false;
  schedule_wanted_ = true;
  next_schedule_ = pause_until_ = ticked_ = absl::InfinitePast();
  listened_ = world_.now();
  Wake();
}

void Loop::Crash() {
  if (!up_) return;
  world_.Note("coordinator dies", 0, -1, epoch_);
  ++world_.result.crashes;
  if (world_.disk->open() > 0) world_.Hit(Probe::kCrashInUpload);
  up_ = false;
  turning_ = asleep_ = false;
  ++sleep_;
  // Callers hear nothing.
  pending_.clear();
  unnoted_.clear();
  sessions_.assign(sessions_.size(), nullptr);
  world_.disk->Crash();
  world_.network->CoordinatorDied();
  Random& random = world_.random;
  const absl::Duration down = random.LogTime(absl::Milliseconds(200), absl::Minutes(10));
  world_.events.After(world_.faults ? down : absl::Seconds(1), [this] { Start(); });
}

Event Loop::NewestCheckpoint(int64_t job) const {
  if (world_.core->plant() == Plant::kForgetCheckpoint) {
    const v1::JobRecord* record = state_.FindJob(job);
    if (record == nullptr) return coordinator::CheckpointsChanged{JobName(job), "", 0};
    return coordinator::CheckpointsChanged{JobName(job), record->job().latest_checkpoint(),
                                           record->newest_step()};
  }
  const auto newest = world_.disk->Newest(job);
  if (!newest) return coordinator::CheckpointsChanged{JobName(job), "", 0};
  return coordinator::CheckpointsChanged{JobName(job), absl::StrCat("checkpoints/", newest->number),
                                         newest->step};
}

// ---- what is posted ----

void Loop::Post(Entry entry) {
  if (!up_) return;  // nobody hears it
  pending_.push_back(std::move(entry));
  Wake();
}

void Loop::Do(Event event, Done done) {
  Entry entry;
  entry.event = [event = std::move(event)] { return event; };
  entry.done = std::move(done);
  Post(std::move(entry));
}

void Loop::Receive(const StreamPtr& stream, v1::WorkerMessage message) {
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
    if (!is_current && world_.core->plant() != Plant::kAcceptOldStream) return std::nullopt;
    return event;
  };
  entry.done = [this, stream](const absl::StatusOr<std::string>& result) {
    if (!result.ok()) world_.network->CloseByServer(stream);
  };
  Post(std::move(entry));
}

void Loop::Attach(const StreamPtr& stream, const v1::Hello& hello) {
  v1::CoordinatorMessage welcome;
  welcome.mutable_welcome()->set_lease_seconds(absl::ToDoubleSeconds(world_.config.lease));
  world_.network->SendDown(stream, std::move(welcome));
  Entry entry;
  entry.event = [hello] { return coordinator::WorkerHello{hello}; };
  entry.applied = [this, stream] {
    StreamPtr before = std::exchange(sessions_[stream->worker], stream);
    if (before == nullptr || before == stream) return;
    world_.Hit(Probe::kHelloReplacesStream);
    world_.network->CloseByServer(before);
  };
  entry.done = [this, stream](const absl::StatusOr<std::string>& result) {
    if (!result.ok()) world_.network->CloseByServer(stream);
  };
  Post(std::move(entry));
}

void Loop::Detach(const StreamPtr& stream) {
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

absl::Status Loop::CheckGeneration(int64_t job, int64_t generation) const {
  const v1::JobRecord* record = state_.FindJob(job);
  if (record == nullptr) return absl::NotFoundError("no such job");
  if (world_.core->plant() == Plant::kAcceptOldCommit) return absl::OkStatus();
  if (record->job().generation() == generation && !record->ranks().empty()) return absl::OkStatus();
  return absl::AbortedError("that generation is over");
}

void Loop::Commit(int64_t job, int64_t generation, int64_t number, Done done) {
  auto status = std::make_shared<absl::Status>();
  Entry publish = NoteNewest(job);
  publish.event = [this, job, generation, number, status,
                   note = std::move(publish.event)]() mutable -> std::optional<Event> {
    *status = CheckGeneration(job, generation);
    if (status->ok()) *status = world_.disk->Commit(job, number);
    if (!status->ok()) return std::nullopt;
    world_.checker->Saved(job, generation, number);
    world_.strikes->Saved();
    return note();
  };
  publish.done = [this, job, status, done = std::move(done)](const auto& noted) mutable {
    if (!status->ok()) return done(*status);
    world_.disk->Retain(job, 2);
    done(std::string());
  };
  Post(std::move(publish));
}

Loop::Entry Loop::NoteNewest(int64_t job) {
  Entry entry;
  entry.event = [this, job] {
    unnoted_.insert(job);
    return NewestCheckpoint(job);
  };
  // Not where a newer one was published after this had been asked for.
  entry.applied = [this, job] {
    const v1::JobRecord* record = state_.FindJob(job);
    const auto newest = NewestCheckpoint(job);
    const bool noted =
        record == nullptr || record->job().latest_checkpoint() ==
                                 std::get<coordinator::CheckpointsChanged>(newest).newest;
    if (noted) unnoted_.erase(job);
  };
  entry.done = [](const auto&) {};
  return entry;
}

}  // namespace milepost::sim
