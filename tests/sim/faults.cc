#include "tests/sim/faults.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/agent.h"
#include "tests/sim/clients.h"
#include "tests/sim/coordinator.h"
#include "tests/sim/disk.h"
#include "tests/sim/gang.h"

namespace milepost::sim {
namespace {

// Of what could be struck.
constexpr double kStrike = 0.01;
constexpr double kLateWords = 0.002;
constexpr double kTogether = 0.1;
constexpr double kLastSpace = 0.003;

}  // namespace

void Faults::Every(absl::Duration mean, std::function<void()> fault) {
  const double share = 200.0 / world_.options.workers;
  world_.events.After(world_.random.Until(mean * share), [this, mean, fault] {
    if (!world_.faults) return;
    fault();
    Every(mean, fault);
  });
}

int Faults::AnyWorker() {
  return static_cast<int>(world_.random.Int(0, world_.options.workers - 1));
}

void Faults::Begin() {
  Every(absl::Minutes(8), [this] { RankFails(); });
  Every(absl::Minutes(50), [this] { RankHangs(); });
  Every(absl::Minutes(20), [this] { HostFails(); });
  Every(absl::Minutes(40), [this] { AgentLeaves(); });
  Every(absl::Minutes(25), [this] { Partition(); });
  Every(absl::Minutes(5), [this] { BreakStream(); });
  Every(absl::Minutes(20), [this] { SlowLink(); });
  Every(absl::Hours(3), [this] { Ghost(); });
  Every(absl::Hours(2), [this] { world_.Hit(Probe::kCrashIdle), world_.coordinator->Crash(); });
  Every(absl::Hours(2), [this] { DiskFull(); });
  Every(absl::Hours(2), [this] { DiskSlow(); });
  Every(absl::Hours(2), [this] { DeviceOut(); });
  Every(absl::Hours(1), [this] { Straggle(); });
  Every(absl::Hours(1), [this] { Sicken(); });
}

void Faults::End() {
  world_.disk->full = false;
  world_.disk->slowness = absl::ZeroDuration();
  for (const auto& agent : world_.agents) {
    agent->slowness = 1;
    agent->sick = false;
    for (int slot = 0; agent->cuda() && agent->alive() && slot < agent->slots(); ++slot)
      agent->SetProblem(slot, "");
  }
}

void Faults::Strike(int worker) {
  Random& random = world_.random;
  const absl::Duration delay = random.LogTime(absl::Microseconds(100), absl::Seconds(20));
  world_.events.After(delay, [this, worker] {
    Random& random = world_.random;
    Agent& agent = *world_.agents[worker];
    if (!world_.faults || !agent.alive()) return;
    switch (random.Int(0, 5)) {
      case 0:
        return agent.Leave(random.LogTime(absl::Seconds(1), absl::Minutes(10)));
      case 1:
        return CrashWithLateWords(agent);
      case 2:
        return agent.Die(random.LogTime(absl::Seconds(20), absl::Minutes(10)));
      case 3:
        return world_.network->SlowDown(worker, absl::Minutes(1));
      case 4:
        return world_.network->Partition({worker},
                                         random.LogTime(absl::Seconds(1), absl::Minutes(20)));
      default:
        if (agent.stream() != nullptr) world_.network->Break(agent.stream());
    }
  });
}

// What it says before it dies arrives when its next process may have spoken.
void Faults::CrashWithLateWords(Agent& agent) {
  Random& random = world_.random;
  if (const StreamPtr& stream = agent.stream(); stream != nullptr) {
    const absl::Duration late = random.Time(absl::Milliseconds(500), absl::Seconds(10));
    stream->last_up = std::max(stream->last_up, world_.now() + late);
  }
  world_.events.After(random.LogTime(absl::Milliseconds(10), absl::Seconds(3)), [this, &agent] {
    agent.Crash(world_.random.LogTime(absl::Milliseconds(300), absl::Seconds(20)));
  });
}

void Faults::Sent(const coordinator::Action& action) {
  const bool hurts = action.message.has_start_rank() || action.message.has_stop_rank();
  Agent& agent = *world_.agents[WorkerIndex(action.worker)];
  const bool late = action.message.has_start_rank() && world_.random.Chance(kLateWords);
  if (world_.faults && late && agent.alive()) CrashWithLateWords(agent);
  if (!world_.faults || !hurts || !world_.random.Chance(kStrike)) return;
  Strike(WorkerIndex(action.worker));
}

void Faults::Ending(int worker) {
  if (world_.faults && world_.random.Chance(kStrike)) Strike(worker);
}

void Faults::Changed(const v1::JobRecord& record) {
  const bool busy = !record.ranks().empty() || record.job().state() == v1::JOB_STATE_RECOVERING;
  const bool rare = record.job().state() == v1::JOB_STATE_RESIZING;
  if (!world_.faults || !busy || !world_.random.Chance(rare ? 10 * kStrike : kStrike)) return;
  const int64_t job = coordinator::JobNumber(record.job().name());
  const absl::Duration delay = world_.random.LogTime(absl::Milliseconds(1), absl::Seconds(20));
  const int worker = record.ranks().empty() ? -1 : WorkerIndex(record.ranks(0).worker());
  world_.events.After(delay, [this, job, worker] { world_.clients->Meddle(job, worker); });
}

void Faults::RankFails() {
  static const auto* const kClasses = new std::vector<v1::FailureClass>{
      v1::FAILURE_CLASS_OUT_OF_MEMORY, v1::FAILURE_CLASS_DATA,    v1::FAILURE_CLASS_DEVICE,
      v1::FAILURE_CLASS_HOST,          v1::FAILURE_CLASS_NETWORK, v1::FAILURE_CLASS_INTERNAL};
  // Now and then one that fails wherever it runs.
  Process* process = world_.gangs->Any();
  if (process != nullptr) world_.gangs->Fail(*process, world_.random.Of(*kClasses));
}

void Faults::RankHangs() {
  Process* process = world_.gangs->Any();
  if (process != nullptr) world_.gangs->Hang(*process, world_.random.Chance(0.3));
}

void Faults::HostFails() {
  Random& random = world_.random;
  Agent& agent = *world_.agents[AnyWorker()];
  if (random.Chance(0.5))
    return agent.Crash(random.LogTime(absl::Milliseconds(300), absl::Minutes(5)));
  agent.Die(random.LogTime(absl::Seconds(20), absl::Minutes(40)));
}

void Faults::AgentLeaves() {
  world_.agents[AnyWorker()]->Leave(world_.random.LogTime(absl::Seconds(1), absl::Minutes(40)));
}

void Faults::Partition() {
  Random& random = world_.random;
  std::vector<int> workers = {AnyWorker()};
  if (random.Chance(0.3)) {  // a rack
    const int first = workers[0] / 16 * 16;
    workers.clear();
    for (int i = first; i < first + 16 && i < world_.options.workers; ++i) workers.push_back(i);
  } else if (random.Chance(0.3)) {
    for (int64_t i = random.Int(1, world_.options.workers / 4); i > 0; --i)
      workers.push_back(AnyWorker());
  }
  // Now and then just longer than the lease: what was going on there comes back at once.
  const absl::Duration lease = world_.config.lease;
  const absl::Duration time = random.Chance(0.3)
                                  ? lease + random.Time(absl::Seconds(2), absl::Minutes(1))
                                  : random.LogTime(absl::Seconds(1), absl::Minutes(15));
  world_.network->Partition(workers, time);
}

void Faults::BreakStream() {
  const StreamPtr stream = world_.agents[AnyWorker()]->stream();
  if (stream != nullptr) world_.network->Break(stream);
}

void Faults::SlowLink() {
  world_.network->SlowDown(AnyWorker(),
                           world_.random.LogTime(absl::Seconds(10), absl::Minutes(20)));
}

// A copy of the worker that was started before it, and comes late.
void Faults::Ghost() {
  const int worker = AnyWorker();
  const StreamPtr ghost = world_.network->OpenGhost(worker, 1);
  if (ghost == nullptr) return;
  v1::WorkerMessage message;
  v1::Hello* hello = message.mutable_hello();
  hello->set_worker_id(absl::StrCat("w", worker));
  hello->set_incarnation(1);
  hello->add_slots()->set_device(v1::DEVICE_KIND_CPU);
  const Agent& agent = *world_.agents[worker];
  if (!agent.alive() || agent.stream() == nullptr || agent.stream()->incarnation == 1) return;
  world_.network->SendUp(ghost, std::move(message));
}

void Faults::Saved() {
  if (world_.faults && world_.random.Chance(kLastSpace)) FillDisk();
}

// The end of the older stream is heard together with it.
void Faults::Replacing(const StreamPtr& before) {
  if (world_.faults && world_.random.Chance(kTogether)) world_.network->EndNow(before);
}

void Faults::Committing(const v1::JobRecord& record) {
  if (!world_.faults || record.ranks().empty() || !world_.random.Chance(kStrike)) return;
  const int64_t job = coordinator::JobNumber(record.job().name());
  for (auto& [key, process] : world_.agents[WorkerIndex(record.ranks(0).worker())]->processes()) {
    if (key.job == job) return world_.gangs->Fail(*process, v1::FAILURE_CLASS_INTERNAL);
  }
}

void Faults::FillDisk() {
  world_.disk->full = true;
  world_.Note("disk full", 0, -1);
  world_.events.After(world_.random.LogTime(absl::Seconds(1), absl::Minutes(1)),
                      [this] { world_.disk->full = false; });
}

void Faults::DiskFull() {
  FillDisk();
  if (world_.random.Chance(0.2)) world_.coordinator->Crash();
}

void Faults::DiskSlow() {
  world_.disk->slowness = world_.random.LogTime(absl::Milliseconds(100), absl::Seconds(8));
  world_.events.After(world_.random.LogTime(absl::Seconds(5), absl::Minutes(1)),
                      [this] { world_.disk->slowness = absl::ZeroDuration(); });
}

void Faults::DeviceOut() {
  const int worker = AnyWorker() / 5 * 5 + 4;  // those have GPUs
  if (worker >= world_.options.workers) return;
  Agent& agent = *world_.agents[worker];
  if (!agent.alive()) return;
  const int slot = static_cast<int>(world_.random.Int(0, agent.slots() - 1));
  world_.Hit(Probe::kDeviceOut);
  agent.SetProblem(slot, "it fell off the bus");
  for (auto& [key, process] : agent.processes()) {
    if (process->slot != slot) continue;
    world_.gangs->Fail(*process, v1::FAILURE_CLASS_DEVICE);
    break;
  }
  world_.events.After(world_.random.LogTime(absl::Minutes(5), absl::Hours(3)), [&agent, slot] {
    if (agent.alive()) agent.SetProblem(slot, "");
  });
}

void Faults::Straggle() {
  const int worker = AnyWorker();
  Agent& agent = *world_.agents[worker];
  agent.slowness = 1.4 + world_.random.Unit();
  world_.Note("slow host", 0, worker);
  world_.gangs->SpeedChanged(worker);
  world_.events.After(world_.random.LogTime(absl::Minutes(5), absl::Hours(1)), [this, worker] {
    world_.agents[worker]->slowness = 1;
    world_.gangs->SpeedChanged(worker);
  });
}

// From now on the host's ranks fail one after the other.
void Faults::Sicken() {
  const int worker = AnyWorker();
  Agent& agent = *world_.agents[worker];
  if (std::exchange(agent.sick, true)) return;
  world_.Note("sick host", 0, worker);
  FailRanksOf(worker);
  world_.events.After(world_.random.LogTime(absl::Minutes(10), absl::Hours(3)),
                      [&agent] { agent.sick = false; });
}

void Faults::FailRanksOf(int worker) {
  Agent& agent = *world_.agents[worker];
  if (!world_.faults || !agent.sick) return;
  if (!agent.processes().empty()) {
    world_.gangs->Fail(*agent.processes().begin()->second, v1::FAILURE_CLASS_DEVICE);
  }
  world_.events.After(world_.random.Time(absl::Seconds(15), absl::Minutes(4)),
                      [this, worker] { FailRanksOf(worker); });
}

}  // namespace milepost::sim
