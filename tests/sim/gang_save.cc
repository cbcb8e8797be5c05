// How attempts save, and how ranks end.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/exit_codes.h"
#include "common/proto_time.h"
#include "tests/sim/checker.h"
#include "tests/sim/coordinator.h"
#include "tests/sim/disk.h"
#include "tests/sim/faults.h"
#include "tests/sim/gang.h"

namespace milepost::sim {
namespace {

constexpr absl::Duration kAnswerPatience = absl::Seconds(15);
// Nine tenths of the minute that an agent's stop takes: then ranks leave with what is in memory.
constexpr absl::Duration kStopPatience = absl::Seconds(54);
constexpr int kSigKill = 9;

}  // namespace

// ---- saving ----

bool Gangs::Reaches(const Gang& gang) const {
  return std::all_of(gang.ranks.begin(), gang.ranks.end(), [&](const Process* rank) {
    return rank != nullptr && world_.network->Reaches(rank->worker);
  });
}

void Gangs::Save(const GangPtr& gang, int64_t step, bool final) {
  const uint64_t id = ++gang->uploads;
  gang->upload = {.active = true, .final = final, .step = step, .id = id};
  world_.events.After(world_.random.Time(absl::Milliseconds(50), absl::Seconds(1)),
                      [this, gang, id] { BeginUpload(gang, id); });
  if (gang->stopping) LeaveInTime(gang);
}

// Saved or not.
void Gangs::LeaveInTime(const GangPtr& gang) {
  world_.events.After(kStopPatience, [this, gang, id = gang->upload.id] {
    if (gang->upload.id != id || gang->broken || gang->finished) return;
    gang->finished = true;
    for (const Process* rank : gang->ranks) {
      if (rank != nullptr) KeepInMemory(*rank);
    }
    LeaveAll(gang, v1::RANK_STATE_STOPPED);
  });
}

void Gangs::Retry(const GangPtr& gang, uint64_t id, bool from_begin) {
  world_.events.After(world_.random.Time(absl::Milliseconds(200), absl::Seconds(2)),
                      [this, gang, id, from_begin] {
                        from_begin ? BeginUpload(gang, id) : CommitUpload(gang, id);
                      });
}

void Gangs::BeginUpload(const GangPtr& gang, uint64_t id) {
  if (gang->upload.id != id || gang->broken || gang->finished) return;
  if (!Reaches(*gang)) return Retry(gang, id, /*from_begin=*/true);
  absl::Status status = world_.coordinator->CheckGeneration(gang->job, gang->generation);
  if (!status.ok()) return UploadEnded(gang, id, status);
  const auto number = world_.disk->Begin(gang->job, gang->generation, gang->upload.step);
  if (!number.ok()) return UploadEnded(gang, id, number.status());
  gang->upload.number = *number;
  world_.events.After(world_.random.LogTime(absl::Seconds(1), absl::Minutes(2)),
                      [this, gang, id] { CommitUpload(gang, id); });
}

void Gangs::CommitUpload(const GangPtr& gang, uint64_t id) {
  if (gang->upload.id != id || gang->broken || gang->finished) return;
  if (!Reaches(*gang)) return Retry(gang, id, /*from_begin=*/false);
  const int asked = ++gang->upload.commits;
  const bool answer_lost = world_.faults && world_.random.Chance(0.01);
  const auto answer = [this, gang, id, asked,
                       answer_lost](const absl::StatusOr<std::string>& result) {
    if (answer_lost) return;
    const absl::Duration back = world_.random.Time(absl::Milliseconds(1), absl::Milliseconds(50));
    world_.events.After(back, [this, gang, id, asked, status = result.status()] {
      if (gang->upload.commits == asked) UploadEnded(gang, id, status);
    });
  };
  world_.coordinator->Commit(gang->job, gang->generation, gang->upload.number, answer);
  world_.events.After(kAnswerPatience, [this, gang, id, asked] {
    const bool waits = gang->upload.id == id && gang->upload.active &&
                       gang->upload.commits == asked && !gang->broken && !gang->finished;
    if (!waits) return;
    world_.Hit(Probe::kCommitAnswerLost);
    CommitUpload(gang, id);
  });
}

void Gangs::UploadEnded(const GangPtr& gang, uint64_t id, const absl::Status& status) {
  if (gang->upload.id != id || !gang->upload.active || gang->broken || gang->finished) return;
  ++gang->upload.commits;  // answered
  if (status.ok() || absl::IsAlreadyExists(status)) return Saved(gang);
  if (absl::IsNotFound(status)) {
    world_.Hit(Probe::kCheckpointSwept);
    return Retry(gang, id, /*from_begin=*/true);
  }
  if (absl::IsResourceExhausted(status)) {
    world_.Hit(Probe::kCheckpointDiskFull);
    if (gang->upload.final) return Retry(gang, id, /*from_begin=*/true);
    gang->upload.active = false;
    return;
  }
  if (!absl::IsAborted(status)) return Retry(gang, id, /*from_begin=*/true);
  world_.Hit(Probe::kCommitFenced);
  gang->upload.active = false;
  for (Process* rank : gang->ranks) {
    if (rank == nullptr) continue;
    EndSoon(*rank, world_.random.Time(absl::ZeroDuration(), absl::Seconds(2)), PeerLost(*rank));
  }
}

void Gangs::Saved(const GangPtr& gang) {
  gang->upload.active = false;
  JobTruth& truth = *gang->truth;
  truth.committed = std::max(truth.committed, gang->upload.step);
  if (gang->upload.step >= truth.steps) truth.finished = true;
  if (!gang->upload.final) return;
  gang->finished = true;
  LeaveAll(gang,
           gang->upload.step >= truth.steps ? v1::RANK_STATE_SUCCEEDED : v1::RANK_STATE_STOPPED);
}

// In good order, each on its own.
void Gangs::LeaveAll(const GangPtr& gang, v1::RankState state) {
  const auto last = std::find_if(gang->ranks.rbegin(), gang->ranks.rend(),
                                 [](const Process* rank) { return rank != nullptr; });
  if (last != gang->ranks.rend()) world_.strikes->Ending((*last)->worker);
  for (Process* rank : gang->ranks) {
    if (rank == nullptr || rank->hung) continue;
    const bool stopped = rank->asked_to_stop || gang->stopping;
    v1::RankReport report =
        world_.agents[rank->worker]->NewReport(*rank, stopped ? v1::RANK_STATE_STOPPED : state);
    report.set_exit_code(stopped ? kExitStopped : kExitOk);
    EndSoon(*rank, world_.random.Time(absl::Milliseconds(5), absl::Seconds(2)), std::move(report));
  }
}

// ---- ends ----

v1::RankReport Gangs::PeerLost(const Process& process) const {
  v1::RankReport report = world_.agents[process.worker]->NewReport(process, v1::RANK_STATE_FAILED);
  report.set_failure_class(v1::FAILURE_CLASS_NETWORK);
  report.set_peer_lost(true);
  report.set_exit_code(kExitPeerLost);
  report.set_message("another rank went away");
  return report;
}

v1::RankReport Gangs::Killed(const Process& process) const {
  v1::RankReport report = world_.agents[process.worker]->NewReport(process, v1::RANK_STATE_FAILED);
  report.set_failure_class(v1::FAILURE_CLASS_HOST);
  report.set_peer_lost(true);
  report.set_signal(kSigKill);
  report.set_message("killed by its worker, as told");
  return report;
}

void Gangs::EndSoon(Process& process, absl::Duration delay, v1::RankReport report) {
  world_.events.After(
      delay, [this, key = process.key, worker = process.worker, id = process.id,
              report = std::move(report)]() mutable { End(key, worker, id, std::move(report)); });
}

void Gangs::End(RankKey key, int worker, uint64_t id, v1::RankReport report) {
  Process* process = Find(worker, key, id);
  if (process == nullptr) return;
  *report.mutable_time() = ToProto(world_.now());
  const GangPtr gang = process->gang;
  if (gang->stepping) *report.mutable_progress() = ProgressOf(*gang, *process);
  Detached(*process);
  world_.agents[worker]->Ended(*process, std::move(report));
}

void Gangs::Lost(Process& process) {
  if (process.gang->finished) world_.Hit(Probe::kLostAfterSuccess);
  Detached(process);
}

void Gangs::Detached(Process& process) {
  const GangPtr gang = process.gang;
  const RankKey& key = process.key;
  if (key.rank < static_cast<int>(gang->ranks.size())) gang->ranks[key.rank] = nullptr;
  if (gang->stepping && !gang->finished && !gang->broken) BreakUp(gang);
  const bool any = std::any_of(gang->ranks.begin(), gang->ranks.end(),
                               [](const Process* rank) { return rank != nullptr; });
  if (!any) gangs_.erase({key.job, key.generation});
}

void Gangs::BreakUp(const GangPtr& gang) {
  const int64_t step = gang->StepAt(world_.now());
  gang->base_step = step;
  gang->broken = true;
  ++gang->plan;
  for (Process* rank : gang->ranks) {
    if (rank == nullptr || rank->hung || world_.random.Chance(0.3)) continue;
    EndSoon(*rank, world_.random.LogTime(absl::Milliseconds(20), absl::Seconds(8)),
            PeerLost(*rank));
    KeepInMemory(*rank);
  }
}

void Gangs::KeepInMemory(const Process& process) {
  const Gang& gang = *process.gang;
  MemoryState& state = world_.agents[process.worker]->memory()[gang.job];
  if (state.generation > gang.generation) return;
  if (state.generation < gang.generation) {
    state = {.generation = gang.generation,
             .step = gang.base_step,
             .world = static_cast<int>(gang.ranks.size())};
  }
  state.ranks.push_back(process.key.rank);
  state.time = world_.now();
}

void Gangs::Stop(Process& process) {
  process.asked_to_stop = true;
  const GangPtr gang = process.gang;
  if (process.hung || gang->broken || gang->finished || gang->stopping) return;
  if (!gang->stepping) {
    v1::RankReport report =
        world_.agents[process.worker]->NewReport(process, v1::RANK_STATE_STOPPED);
    report.set_exit_code(kExitStopped);
    return EndSoon(process, world_.random.Time(absl::Milliseconds(5), absl::Seconds(1)),
                   std::move(report));
  }
  if (gang->upload.active && gang->upload.final) return LeaveInTime(gang);
  gang->stopping = true;
  PlanNext(gang);
}

void Gangs::Abort(Process& process) {
  if (process.hung) return;
  const GangPtr gang = process.gang;
  if (gang->stepping && !gang->broken && !gang->finished) BreakUp(gang);
  if (gang->stepping) KeepInMemory(process);
  EndSoon(process, world_.random.LogTime(absl::Milliseconds(20), absl::Seconds(3)),
          PeerLost(process));
}

void Gangs::Kill(Process& process) {
  absl::Duration delay = world_.random.LogTime(absl::Milliseconds(5), absl::Seconds(5));
  if (process.unkillable) {
    world_.Hit(Probe::kUnkillable);
    delay = world_.random.Time(absl::Minutes(1), absl::Minutes(12));
    // Whoever waits for it may well kill the agent.
    if (world_.faults && world_.random.Chance(0.1)) {
      world_.events.After(
          world_.random.Time(absl::ZeroDuration(), absl::Minutes(2)),
          [this, worker = process.worker] { world_.agents[worker]->Crash(absl::Seconds(1)); });
    }
  }
  EndSoon(process, delay, Killed(process));
}

// ---- faults ----

void Gangs::Fail(Process& process, v1::FailureClass failure_class) {
  world_.Note("rank fails", process.key.job, process.worker, process.key.generation, failure_class);
  world_.checker->Broke(process.key.job, process.key.generation);
  v1::RankReport report = world_.agents[process.worker]->NewReport(process, v1::RANK_STATE_FAILED);
  report.set_failure_class(failure_class);
  report.set_exit_code(failure_class == v1::FAILURE_CLASS_USER ? kExitUsage : kExitError);
  report.set_message(absl::StrCat("it broke: ", v1::FailureClass_Name(failure_class)));
  EndSoon(process, absl::ZeroDuration(), std::move(report));
}

void Gangs::Hang(Process& process, bool unkillable) {
  world_.Note("rank hangs", process.key.job, process.worker, process.key.generation);
  world_.Hit(Probe::kRankHung);
  world_.checker->Broke(process.key.job, process.key.generation);
  process.hung = true;
  process.unkillable = unkillable;
  const GangPtr gang = process.gang;
  if (gang->stepping && !gang->finished && !gang->broken) {
    gang->base_step = gang->StepAt(world_.now());
    gang->broken = true;
    ++gang->plan;
  }
  // The others' collectives time out; who is alone is ended by its own watch.
  const absl::Duration patience = world_.random.Time(absl::Minutes(1), absl::Minutes(3));
  for (Process* rank : gang->ranks) {
    if (rank == nullptr || (rank->hung && gang->ranks.size() > 1)) continue;
    v1::RankReport report = PeerLost(*rank);
    if (gang->ranks.size() == 1) report.set_peer_lost(false);
    EndSoon(*rank, patience + world_.random.Time(absl::ZeroDuration(), absl::Seconds(10)),
            std::move(report));
  }
}

}  // namespace milepost::sim
