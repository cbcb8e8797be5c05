#include "tests/sim/simulation.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "tests/sim/agent.h"
#include "tests/sim/checker.h"
#include "tests/sim/clients.h"
#include "tests/sim/coordinator.h"
#include "tests/sim/disk.h"
#include "tests/sim/faults.h"
#include "tests/sim/gang.h"
#include "tests/sim/network.h"
#include "tests/sim/world.h"

namespace milepost::sim {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1'700'000'000);
constexpr size_t kMostLines = 60;
constexpr absl::Duration kMostCalm = absl::Hours(36);
constexpr int kBeatGroups = 4;
// Heartbeats are as rare as they may be: each tells nothing but that the worker is there.
constexpr double kBeatsInLease = 1.3;
// Most hosts are back by then.
constexpr absl::Duration kForgetWorkerAfter = absl::Seconds(40);
// Each chosen by the seed: losses of all lengths against leases of all lengths.
constexpr int kLeases[] = {60, 150, 400};

void Mix(uint64_t value, uint64_t* hash) {
  for (int i = 0; i < 8; ++i) {
    *hash = (*hash ^ (value & 0xff)) * 1099511628211ULL;
    value >>= 8;
  }
}

class Simulation {
 public:
  explicit Simulation(const Options& options) : world_(options) {}

  Result Run() {
    Build();
    const absl::Time end = kStart + absl::Hours(world_.options.hours);
    while (!Failed() && world_.events.RunNext(end)) continue;
    if (!Failed()) Calm(end);
    return Finish();
  }

 private:
  bool Failed() const { return !world_.result.violation.empty(); }

  void Build() {
    world_.coordinator->Start();
    for (int i = 0; i < world_.options.workers; ++i) {
      world_.agents.push_back(std::make_unique<Agent>(world_, i));
      Agent* agent = world_.agents.back().get();
      world_.events.After(world_.random.Time(absl::ZeroDuration(), absl::Seconds(30)),
                          [agent] { agent->Start(); });
    }
    for (int group = 0; group < kBeatGroups; ++group) Beat(group);
    world_.clients->Begin();
    world_.strikes->Begin();
  }

  void Beat(int group) {
    for (int i = group; i < world_.options.workers; i += kBeatGroups) world_.agents[i]->Beat();
    world_.events.After(world_.config.lease / kBeatsInLease, [this, group] { Beat(group); });
  }

  // No faults any more: all that can run does, and ends.
  void Calm(absl::Time end) {
    world_.faults = false;
    world_.Note("calm", 0, -1);
    world_.strikes->End();
    world_.gangs->Hurry();
    if (!world_.coordinator->up()) world_.coordinator->Start();
    world_.clients->Settle();
    for (absl::Time until = end; until < end + kMostCalm && !Failed();) {
      until += absl::Hours(1);
      while (!Failed() && world_.events.RunNext(until)) {
        if (world_.coordinator->state().active().empty() && AllAnswered())
          return world_.checker->End(world_.coordinator->state());
      }
      world_.clients->CancelWhatCannotRun();
    }
    if (!Failed()) world_.checker->End(world_.coordinator->state());
  }

  bool AllAnswered() const {
    return std::all_of(world_.jobs.begin(), world_.jobs.end(),
                       [](const auto& job) { return job->acknowledged || job->number == 0; });
  }

  Result Finish() {
    Result& result = world_.result;
    result.probes = world_.probes;
    result.hash = world_.hash;
    result.events = world_.events.count();
    result.hour = absl::ToDoubleHours(world_.now() - kStart);
    result.writes = world_.coordinator->writes();
    result.passes = world_.coordinator->passes();
    for (const auto& [number, record] : world_.coordinator->state().jobs()) {
      ++result.jobs;
      result.attempts += record.job().attempts();
      result.succeeded += record.job().state() == v1::JOB_STATE_SUCCEEDED;
      result.failed += record.job().state() == v1::JOB_STATE_FAILED;
      result.cancelled += record.job().state() == v1::JOB_STATE_CANCELLED;
    }
    result.lines.assign(world_.lines.begin(), world_.lines.end());
    return result;
  }

  World world_;
};

}  // namespace

std::string WorkerName(int index) { return absl::StrCat("workers/w", index); }

int WorkerIndex(absl::string_view name) {
  int index = 0;
  return absl::ConsumePrefix(&name, "workers/w") && absl::SimpleAtoi(name, &index) ? index : 0;
}

World::World(const Options& given) : options(given), random(given.seed), events(kStart) {
  config.lease = absl::Seconds(kLeases[random.Int(0, std::size(kLeases) - 1)]);
  config.forget_worker_after = kForgetWorkerAfter;
  core = std::make_unique<Core>(options.plant, config);
  disk = std::make_unique<Disk>(options.plant);
  network = std::make_unique<Network>(*this);
  coordinator = std::make_unique<Coordinator>(*this);
  gangs = std::make_unique<Gangs>(*this);
  clients = std::make_unique<Clients>(*this);
  checker = std::make_unique<Checker>(*this);
  strikes = std::make_unique<Faults>(*this);
}

World::~World() = default;

void World::Note(absl::string_view what, int64_t job, int worker, int64_t a, int64_t b) {
  for (const char c : what) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211ULL;
  Mix(static_cast<uint64_t>(absl::ToUnixNanos(now())), &hash);
  for (const int64_t value : {job, static_cast<int64_t>(worker), a, b})
    Mix(static_cast<uint64_t>(value), &hash);
  if (options.trace.empty()) return;
  const bool about =
      options.trace == "all" || (job > 0 && coordinator::JobName(job) == options.trace) ||
      (worker >= 0 && WorkerName(worker) == options.trace) || (job == 0 && worker == -1);
  if (!about) return;
  lines.push_back(absl::StrFormat("%10.3f s  %s%s%s (%d, %d)",
                                  absl::ToDoubleSeconds(now() - kStart), what,
                                  job > 0 ? absl::StrCat(" ", coordinator::JobName(job)) : "",
                                  worker >= 0 ? absl::StrCat(" ", WorkerName(worker)) : "", a, b));
  if (lines.size() > kMostLines) lines.pop_front();
}

void World::Fail(absl::string_view name, const std::string& subject, const std::string& what) {
  if (!result.violation.empty()) return;
  result.violation = what;
  result.checker = std::string(name);
  result.subject = subject;
}

Result Simulate(const Options& options) { return Simulation(options).Run(); }

std::string Describe(const Options& options, const Result& result) {
  Options again = options;
  again.trace = result.subject.empty() ? "all" : result.subject;
  const Result traced = Simulate(again);
  const std::string plant =
      options.plant == Plant::kNone ? "" : absl::StrCat(" --plant ", PlantName(options.plant));
  return absl::StrCat(
      "seed ", options.seed, plant, absl::StrFormat(", after %.3f hours", result.hour),
      ", found by '", result.checker, "': ", result.violation, "\nthe last about ", again.trace,
      ":\n  ", absl::StrJoin(traced.lines, "\n  "), "\nrepeat it with: scripts/sim --seed ",
      options.seed, " --hours ", options.hours, " --workers ", options.workers, plant);
}

}  // namespace milepost::sim
