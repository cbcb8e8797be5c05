#include "tests/sim/agent.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/proto_time.h"
#include "coordinator/core/decide.h"
#include "tests/sim/checker.h"
#include "tests/sim/gang.h"

namespace milepost::sim {
namespace {

constexpr absl::Duration kFirstBackoff = absl::Milliseconds(50);
constexpr absl::Duration kLongestBackoff = absl::Seconds(1);
// Where nobody is there; the real one tries every 200 ms.
constexpr absl::Duration kNobodyThere = absl::Seconds(2);
constexpr absl::Duration kStopTime = absl::Seconds(60);
constexpr absl::Duration kAcknowledgeTime = absl::Seconds(3);

template <typename Message>
RankKey KeyOf(const Message& message) {
  return {coordinator::JobNumber(message.job()), message.generation(),
          static_cast<int>(message.rank())};
}

}  // namespace

Agent::Agent(World& world, int index) : world_(world), index_(index), cuda_(index % 5 == 4) {
  hello_.set_worker_id(absl::StrCat("w", index));
  hello_.set_host(absl::StrCat("host", index));
  (*hello_.mutable_labels())["rack"] = absl::StrCat("r", index / 16);
  const int slots = cuda_ ? 2 : static_cast<int>(world.random.Int(1, 2));
  for (int i = 0; i < slots; ++i) {
    v1::Slot* slot = hello_.add_slots();
    slot->set_index(i);
    slot->set_device(cuda_ ? v1::DEVICE_KIND_CUDA : v1::DEVICE_KIND_CPU);
    if (!cuda_) continue;
    slot->set_model(index % 10 == 4 ? "NVIDIA H200" : "NVIDIA A100");
    slot->set_memory_bytes(index % 10 == 4 ? int64_t{141} << 30 : int64_t{80} << 30);
  }
}

// ---- the host ----

void Agent::Start() {
  alive_ = true;
  leaving_ = false;
  hello_.set_incarnation(hello_.incarnation() + 1);
  outbox_.clear();
  for (const auto& [key, process] : processes_) {
    world_.Hit(Probe::kOutlivedItsAgent);
    outbox_[key] = NewReport(*process, v1::RANK_STATE_STARTING);
  }
  backoff_ = kFirstBackoff;
  world_.Note("agent starts", 0, index_, hello_.incarnation());
  Connect();
}

void Agent::LoseProcesses(bool host_died) {
  alive_ = false;
  ++life_;
  stream_ = nullptr;
  outbox_.clear();
  // Ranks do not outlive the agent, but those that nothing ends, and say nothing any more.
  auto lost = std::exchange(processes_, {});
  for (auto& [key, process] : lost) {
    if (process->unkillable && !host_died) {
      world_.gangs->Kill(*process);
      processes_[key] = std::move(process);
    } else {
      world_.gangs->Lost(*process);
    }
  }
}

void Agent::Crash(absl::Duration until) {
  if (!alive_) return;
  world_.Note("agent dies", 0, index_);
  world_.network->CloseByWorker(stream_, /*host_died=*/false);
  LoseProcesses(/*host_died=*/false);
  world_.events.After(until, [this] { Start(); });
}

void Agent::Die(absl::Duration until) {
  if (!alive_) return;
  world_.Note("host dies", 0, index_);
  world_.network->CloseByWorker(stream_, /*host_died=*/true);
  LoseProcesses(/*host_died=*/true);
  memory_.clear();
  facts_.clear();
  world_.events.After(until, [this] { Start(); });
}

void Agent::Leave(absl::Duration until) {
  if (!alive_ || leaving_) return;
  world_.Note("agent leaves", 0, index_);
  leaving_ = true;
  away_ = until;
  v1::WorkerMessage message;
  message.mutable_leaving()->set_reason("told to stop");
  Send(std::move(message));
  for (auto& [key, process] : processes_) world_.gangs->Stop(*process);
  world_.events.After(kStopTime, [this, life = life_] {
    if (life != life_) return;
    for (auto& [key, process] : processes_) world_.gangs->Kill(*process);
  });
  MayFinishLeaving();
}

// When the last rank has ended, and the coordinator has had time to hear of it.
void Agent::MayFinishLeaving() {
  if (!alive_ || !leaving_ || !processes_.empty()) return;
  const absl::Duration wait = outbox_.empty() ? absl::Milliseconds(10) : kAcknowledgeTime;
  world_.events.After(wait, [this, life = life_] {
    if (life == life_ && processes_.empty()) FinishLeaving();
  });
}

void Agent::FinishLeaving() {
  if (!outbox_.empty()) world_.Hit(Probe::kLeftWithoutAcknowledgement);
  world_.Note("agent has left", 0, index_);
  world_.network->CloseByWorker(stream_, /*host_died=*/false);
  LoseProcesses(/*host_died=*/false);
  world_.events.After(away_, [this] { Start(); });
}

// ---- streams ----

void Agent::Connect() {
  if (!alive_) return;
  stream_ = world_.network->Open(index_, hello_.incarnation());
  if (stream_ == nullptr) {
    world_.events.After(world_.random.Time(kNobodyThere / 2, kNobodyThere * 2),
                        [this, life = life_] {
                          if (life == life_ && stream_ == nullptr) Connect();
                        });
    return;
  }
  v1::WorkerMessage message;
  *message.mutable_hello() = hello_;
  for (const auto& [key, report] : outbox_) *message.mutable_hello()->add_ranks() = report;
  for (const auto& [slot, facts] : facts_) *message.mutable_hello()->add_devices() = facts;
  world_.Note("hello", 0, index_, hello_.incarnation(), static_cast<int64_t>(outbox_.size()));
  Send(std::move(message));
  world_.gangs->TellSoon(index_);
  if (!leaving_) return;
  v1::WorkerMessage leaving;
  leaving.mutable_leaving()->set_reason("told to stop");
  Send(std::move(leaving));
}

void Agent::StreamEnded(const StreamPtr& stream) {
  if (stream != stream_) return;
  stream_ = nullptr;
  world_.events.After(backoff_ * (0.7 + 0.6 * world_.random.Unit()), [this, life = life_] {
    if (life == life_ && stream_ == nullptr) Connect();
  });
  backoff_ = std::min(backoff_ * 2, kLongestBackoff);
}

void Agent::Send(v1::WorkerMessage message) {
  if (stream_ != nullptr) world_.network->SendUp(stream_, std::move(message));
}

void Agent::Beat() {
  if (stream_ == nullptr) return;
  v1::WorkerMessage message;
  message.mutable_heartbeat();
  world_.network->Beat(stream_, std::move(message));
}

void Agent::SetProblem(int slot, std::string problem) {
  v1::DeviceFacts& facts = facts_[slot];
  facts.set_slot(slot);
  facts.set_problem(std::move(problem));
  v1::WorkerMessage message;
  *message.mutable_heartbeat()->add_devices() = facts;
  Send(std::move(message));
}

void Agent::Handle(const v1::CoordinatorMessage& message) {
  switch (message.message_case()) {
    case v1::CoordinatorMessage::kWelcome:
      backoff_ = kFirstBackoff;
      return;
    case v1::CoordinatorMessage::kStartRank:
      return HandleStart(message.start_rank());
    case v1::CoordinatorMessage::kStopRank:
      return HandleStop(message.stop_rank());
    case v1::CoordinatorMessage::kForgetRank:
      return HandleForget(message.forget_rank());
    case v1::CoordinatorMessage::kCheckHealth:
      return HandleCheck(message.check_health());
    default:
      return;
  }
}

// What it finds is lost with the stream, or the agent's process.
void Agent::HandleCheck(const v1::CheckHealth& check) {
  const absl::Duration takes = world_.random.LogTime(absl::Milliseconds(100), absl::Minutes(3));
  world_.events.After(takes, [this, life = life_, time = check.exclusion_time()] {
    if (life != life_) return;
    if (sick) world_.Hit(Probe::kHealthCheckFailed);
    v1::WorkerMessage message;
    *message.mutable_health_report()->mutable_exclusion_time() = time;
    if (sick) message.mutable_health_report()->set_problem("it is not well");
    Send(std::move(message));
  });
}

void Agent::HandleForget(const v1::ForgetRank& forget) {
  const RankKey key = KeyOf(forget);
  if (!processes_.contains(key)) outbox_.erase(key);
  if (leaving_ && outbox_.empty()) MayFinishLeaving();
}

// ---- ranks ----

void Agent::HandleStart(const v1::StartRank& start) {
  const RankKey key = KeyOf(start);
  if (const auto known = outbox_.find(key); known != outbox_.end()) return SetReport(known->second);
  for (const auto& [other, process] : processes_) {
    if (other.job == key.job && other.generation > key.generation) return;
  }
  if (leaving_) {
    world_.Hit(Probe::kStartWhileLeaving);
    v1::RankReport report;
    report.set_job(start.job());
    report.set_generation(start.generation());
    report.set_rank(start.rank());
    report.set_slot(start.slot());
    report.set_state(v1::RANK_STATE_STOPPED);
    *report.mutable_time() = ToProto(world_.now());
    world_.checker->Reached(key.job, key.generation, key.rank, v1::RANK_STATE_STOPPED);
    return SetReport(std::move(report));
  }
  for (auto& [other, process] : processes_) {
    if (other.job == key.job && other.generation < key.generation) world_.gangs->Kill(*process);
  }
  StartProcess(start, key);
}

void Agent::StartProcess(const v1::StartRank& start, const RankKey& key) {
  for (const auto& [other, process] : processes_) {
    if (process->slot != start.slot()) continue;
    world_.Fail("slots", start.job(),
                absl::StrCat("two processes in slot ", start.slot(), " of ", WorkerName(index_),
                             ": jobs/", other.job, " generation ", other.generation, " and ",
                             start.job(), " generation ", start.generation()));
  }
  auto process = std::make_unique<Process>();
  process->key = key;
  process->worker = index_;
  process->slot = start.slot();
  Process& started = *(processes_[key] = std::move(process));
  world_.Note("process starts", key.job, index_, key.generation, key.rank);
  world_.checker->ProcessStarted(key, index_, start.slot());
  SetReport(NewReport(started, v1::RANK_STATE_STARTING));
  world_.gangs->Started(started, start);
}

void Agent::HandleStop(const v1::StopRank& stop) {
  const RankKey key = KeyOf(stop);
  const auto found = processes_.find(key);
  if (found == processes_.end()) {
    const auto known = outbox_.find(key);
    known != outbox_.end() ? SetReport(known->second) : world_.Hit(Probe::kStopOfUnknownRank);
    return;
  }
  if (stop.graceful()) return world_.gangs->Stop(*found->second);
  if (stop.abort()) return world_.gangs->Abort(*found->second);
  world_.gangs->Kill(*found->second);
}

v1::RankReport Agent::NewReport(const Process& process, v1::RankState state) const {
  v1::RankReport report;
  report.set_job(coordinator::JobName(process.key.job));
  report.set_generation(process.key.generation);
  report.set_rank(process.key.rank);
  report.set_slot(process.slot);
  report.set_state(state);
  *report.mutable_time() = ToProto(world_.now());
  return report;
}

void Agent::SetReport(v1::RankReport report) {
  const RankKey key = KeyOf(report);
  world_.checker->Reached(key.job, key.generation, key.rank, report.state());
  v1::RankReport& known = outbox_[key];
  if (!report.has_progress() && known.has_progress()) {
    *report.mutable_progress() = std::move(*known.mutable_progress());
  }
  known = std::move(report);
  if (stream_ == nullptr) return;
  v1::WorkerMessage message;
  *message.mutable_rank_report() = known;
  Send(std::move(message));
}

void Agent::SetProgress(const RankKey& key, v1::Progress progress) {
  const auto known = outbox_.find(key);
  if (known == outbox_.end()) return;
  *known->second.mutable_progress() = progress;
  if (stream_ == nullptr) return;
  v1::WorkerMessage message;
  v1::RankProgress* told = message.mutable_progress();
  told->set_job(coordinator::JobName(key.job));
  told->set_generation(key.generation);
  told->set_rank(key.rank);
  *told->mutable_progress() = std::move(progress);
  Send(std::move(message));
}

void Agent::Ended(Process& process, v1::RankReport report) {
  const RankKey key = process.key;
  world_.Note("process ends", key.job, index_, key.generation, report.state());
  processes_.erase(key);
  if (!alive_) return;
  SetReport(std::move(report));
  MayFinishLeaving();
}

}  // namespace milepost::sim
