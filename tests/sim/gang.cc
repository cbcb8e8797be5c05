#include "tests/sim/gang.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/proto_time.h"
#include "tests/sim/checker.h"
#include "tests/sim/coordinator.h"
#include "tests/sim/disk.h"

namespace milepost::sim {
namespace {

constexpr absl::Duration kMeetPatience = absl::Minutes(10);
constexpr absl::Duration kMeetRetry = absl::Seconds(3);
// As worker/agent/job_memory.h has it.
constexpr absl::Duration kMemoryKept = absl::Minutes(10);
// From which on the ranks of an attempt say more often where their time goes.
constexpr double kSlow = 1.2;
constexpr double kHaste = 20;

}  // namespace

int64_t Gang::StepAt(absl::Time time) const {
  if (!stepping || broken) return base_step;
  const int64_t step = base_step + (time - base_time) / step_time;
  return std::min(step, truth->steps);
}

Process* Gangs::Find(int worker, const RankKey& key, uint64_t id) const {
  auto& processes = world_.agents[worker]->processes();
  const auto found = processes.find(key);
  return found == processes.end() || found->second->id != id ? nullptr : found->second.get();
}

// ---- from the start to the first step ----

void Gangs::Started(Process& process, const v1::StartRank& start) {
  const RankKey& key = process.key;
  GangPtr& gang = gangs_[{key.job, key.generation}];
  if (gang == nullptr) {
    gang = std::make_shared<Gang>();
    int index = 0;
    (void)absl::SimpleAtoi(start.spec().name().substr(1), &index);
    gang->truth = world_.jobs[index].get();
    gang->job = key.job;
    gang->generation = key.generation;
    gang->checkpoint_step = start.checkpoint_step();
    gang->base_step = start.checkpoint_step();
    gang->ranks.resize(static_cast<size_t>(start.world()), nullptr);
  }
  process.id = next_id_++;
  process.gang = gang;
  if (key.rank < static_cast<int>(gang->ranks.size())) gang->ranks[key.rank] = &process;
  const absl::Duration startup = world_.random.Time(absl::Seconds(2), absl::Seconds(20));
  world_.events.After(
      startup, [this, id = process.id, worker = process.worker, key,
                deadline = world_.now() + kMeetPatience] { Meet(id, worker, key, deadline); });
}

void Gangs::Meet(uint64_t id, int worker, RankKey key, absl::Time deadline) {
  Process* process = Find(worker, key, id);
  if (process == nullptr || process->hung) return;
  const GangPtr gang = process->gang;
  if (gang->stepping || gang->broken || gang->finished) return;
  const bool reaches = world_.network->Reaches(worker);
  if (reaches && !world_.coordinator->CheckGeneration(key.job, key.generation).ok()) {
    return EndSoon(*process, absl::ZeroDuration(), PeerLost(*process));
  }
  if (reaches && !std::exchange(process->ready, true) &&
      ++gang->ready == static_cast<int>(gang->ranks.size())) {
    const absl::Duration connect = world_.random.Time(absl::Milliseconds(200), absl::Seconds(5));
    world_.events.After(connect, [this, gang] { Begin(gang); });
  }
  if (world_.now() >= deadline) return Fail(*process, v1::FAILURE_CLASS_NETWORK);
  const absl::Duration pause = process->ready ? deadline - world_.now() : kMeetRetry;
  world_.events.After(pause,
                      [this, id, worker, key, deadline] { Meet(id, worker, key, deadline); });
}

void Gangs::Begin(const GangPtr& gang) {
  if (gang->broken || gang->stepping) return;
  const bool all = std::all_of(gang->ranks.begin(), gang->ranks.end(), [](const Process* rank) {
    return rank != nullptr && rank->ready && !rank->hung && !rank->asked_to_stop;
  });
  if (!all) return;  // the others will be told
  const int64_t step = Restore(*gang);
  world_.checker->Began(*gang->truth, gang->generation, step);
  for (const auto& [key, other] : gangs_) {
    if (key.first == gang->job && other != gang && other->stepping && !other->broken) {
      world_.Hit(Probe::kTwoGangsAtOnce);
    }
  }
  BeginSteps(gang, step);
}

// The newest moment of which all is there: the checkpoint's, or one that hosts have in memory.
int64_t Gangs::Restore(const Gang& gang) {
  struct Found {
    std::set<int> ranks;
    int world = 0;
    int64_t step = 0;
  };
  std::map<int64_t, Found> by_generation;
  std::set<int> workers;
  for (const Process* rank : gang.ranks) workers.insert(rank->worker);
  for (const int worker : workers) {
    auto& memory = world_.agents[worker]->memory();
    const auto kept = memory.find(gang.job);
    if (kept == memory.end()) continue;
    if (world_.now() - kept->second.time < kMemoryKept &&
        kept->second.generation < gang.generation) {
      Found& found = by_generation[kept->second.generation];
      found.ranks.insert(kept->second.ranks.begin(), kept->second.ranks.end());
      found.world = kept->second.world;
      found.step = kept->second.step;
    }
    memory.erase(kept);
  }
  int64_t best = gang.checkpoint_step;
  for (const auto& [generation, found] : by_generation) {
    const bool whole =
        gang.truth->replicated || static_cast<int>(found.ranks.size()) == found.world;
    if (!whole || found.step <= best) continue;
    best = found.step;
    world_.Hit(Probe::kRestoredFromMemory);
  }
  return best;
}

absl::Duration Gangs::StepTime(const Gang& gang) const {
  double slowest = 1;
  for (const Process* rank : gang.ranks) {
    if (rank != nullptr) slowest = std::max(slowest, world_.agents[rank->worker]->slowness);
  }
  // The same global batch, on fewer or more ranks.
  const double share =
      static_cast<double>(gang.truth->ranks) / static_cast<double>(gang.ranks.size());
  return gang.truth->step_time * (slowest * share / haste_);
}

void Gangs::BeginSteps(const GangPtr& gang, int64_t step) {
  world_.Note("steps begin", gang->job, -1, gang->generation, step);
  gang->stepping = true;
  gang->start_step = gang->base_step = step;
  gang->start_time = gang->base_time = world_.now();
  gang->step_time = StepTime(*gang);
  if (step >= gang->truth->steps) {  // all was done; what was in memory is not saved yet
    gang->step_time = absl::InfiniteDuration();
    if (step > gang->checkpoint_step) return Save(gang, step, /*final=*/true);
    // It is saved, though the answer may have been lost with those who saved it.
    const auto newest = world_.disk->Newest(gang->job);
    if (newest.has_value() && newest->step >= gang->truth->steps) gang->truth->finished = true;
    gang->finished = true;
    return LeaveAll(gang, v1::RANK_STATE_SUCCEEDED);
  }
  gang->first_step_time = gang->TimeOf(step + 1);
  world_.events.At(gang->first_step_time, [this, gang] { ReportRunning(gang); });
  PlanNext(gang);
}

void Gangs::ReportRunning(const GangPtr& gang) {
  if (gang->broken) return;
  for (Process* rank : gang->ranks) {
    if (rank == nullptr) continue;
    v1::RankReport report = world_.agents[rank->worker]->NewReport(*rank, v1::RANK_STATE_RUNNING);
    *report.mutable_progress() = ProgressOf(*gang, *rank);
    world_.agents[rank->worker]->SetReport(std::move(report));
  }
  world_.events.After(world_.random.Time(absl::Seconds(1), absl::Minutes(4)),
                      [this, gang] { ReportProgress(gang); });
}

v1::Progress Gangs::ProgressOf(const Gang& gang, const Process& process) const {
  v1::Progress progress;
  const int64_t step = gang.StepAt(world_.now());
  progress.set_step(step);
  progress.set_start_step(gang.start_step);
  const double own =
      absl::ToDoubleSeconds(gang.truth->step_time) * world_.agents[process.worker]->slowness;
  progress.set_step_seconds(absl::ToDoubleSeconds(gang.step_time));
  progress.set_communication_wait_seconds(
      std::max(0.0, absl::ToDoubleSeconds(gang.step_time) - own));
  progress.set_productive_seconds(absl::ToDoubleSeconds(world_.now() - gang.start_time));
  *progress.mutable_time() = ToProto(world_.now());
  if (process.key.rank == 0)
    world_.checker->Stepped(gang.job, gang.generation, gang.start_step, step);
  return progress;
}

void Gangs::ReportProgress(const GangPtr& gang) {
  if (gang->broken || gang->finished) return;
  const bool slow = gang->step_time > gang->truth->step_time * kSlow && gang->ranks.size() > 1 &&
                    gang->ranks.size() <= 8;
  for (Process* rank : gang->ranks) {
    if (rank == nullptr || rank->hung || (rank->key.rank != 0 && !slow)) continue;
    world_.agents[rank->worker]->SetProgress(rank->key, ProgressOf(*gang, *rank));
  }
  const absl::Duration pause = slow ? std::max(gang->step_time, absl::Seconds(8))
                                    : world_.random.Time(absl::Minutes(2), absl::Minutes(6));
  world_.events.After(pause, [this, gang] { ReportProgress(gang); });
}

// ---- steps ----

void Gangs::Rebase(const GangPtr& gang, absl::Duration step_time) {
  const int64_t step = gang->StepAt(world_.now());
  gang->base_time = gang->TimeOf(step);
  gang->base_step = step;
  gang->step_time = step_time;
  ++gang->plan;
}

void Gangs::SpeedChanged(int worker) {
  for (auto& [key, process] : world_.agents[worker]->processes()) {
    const GangPtr gang = process->gang;
    if (!gang->stepping || gang->broken || gang->finished || gang->upload.final) continue;
    Rebase(gang, StepTime(*gang));
    PlanNext(gang);
    if (gang->step_time > gang->truth->step_time * kSlow) {
      world_.events.After(absl::Seconds(5), [this, gang] { ReportProgress(gang); });
    }
  }
}

void Gangs::TellSoon(int worker) {
  for (auto& [key, process] : world_.agents[worker]->processes()) {
    const GangPtr gang = process->gang;
    if (!gang->stepping || gang->broken || gang->finished || key.rank != 0) continue;
    world_.events.After(world_.random.Time(absl::ZeroDuration(), absl::Seconds(2)),
                        [this, gang, key = key, worker, id = process->id] {
                          Process* rank = Find(worker, key, id);
                          if (rank == nullptr) return;
                          world_.agents[worker]->SetProgress(key, ProgressOf(*gang, *rank));
                        });
  }
}

void Gangs::Hurry() {
  haste_ = kHaste;
  for (const auto& agent : world_.agents) SpeedChanged(agent->index());
}

void Gangs::PlanNext(const GangPtr& gang) {
  const JobTruth& truth = *gang->truth;
  const int64_t now = gang->StepAt(world_.now());
  int64_t next = truth.steps;
  if (truth.checkpoint_every > 0) {
    next = std::min(next, (now / truth.checkpoint_every + 1) * truth.checkpoint_every);
  }
  if (truth.user_error_step > now) next = std::min(next, truth.user_error_step);
  if (gang->stopping) next = now + 1;
  next = std::max(next, now + 1);
  world_.events.At(gang->TimeOf(next), [this, gang, next, plan = ++gang->plan] {
    if (plan == gang->plan && !gang->broken) ReachStep(gang, next);
  });
}

void Gangs::ReachStep(const GangPtr& gang, int64_t step) {
  JobTruth& truth = *gang->truth;
  if (step == truth.user_error_step) {
    for (Process* rank : gang->ranks) {
      if (rank == nullptr) continue;
      world_.Hit(Probe::kUserError);
      return Fail(*rank, v1::FAILURE_CLASS_USER);
    }
  }
  const bool last = step >= truth.steps || gang->stopping;
  if (last) {
    gang->base_step = step;
    gang->base_time = world_.now();
    gang->step_time = absl::InfiniteDuration();  // none follows
  }
  Save(gang, step, last);
  if (!last) PlanNext(gang);
}

Process* Gangs::Any() {
  if (gangs_.empty()) return nullptr;
  auto it = gangs_.begin();
  std::advance(it, world_.random.Int(0, static_cast<int64_t>(gangs_.size()) - 1));
  std::vector<Process*> there;
  for (Process* rank : it->second->ranks) {
    if (rank != nullptr && !rank->hung) there.push_back(rank);
  }
  return there.empty() ? nullptr : world_.random.Of(there);
}

}  // namespace milepost::sim
