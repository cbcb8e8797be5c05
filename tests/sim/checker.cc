#include "tests/sim/checker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/proto_time.h"

namespace milepost::sim {
namespace {

using coordinator::IsTerminal;
using coordinator::JobNumber;

std::string StateName(const v1::JobRecord& record) {
  return v1::JobState_Name(record.job().state()).substr(10);
}

}  // namespace

Checker::Checker(World& world)
    : world_(world), heard_(static_cast<size_t>(world.options.workers), absl::InfinitePast()) {}

void Checker::Fail(const char* checker, const Record& record, const std::string& what) {
  world_.Fail(checker, record.job().name(),
              absl::StrCat(record.job().name(), " (", StateName(record), ", generation ",
                           record.job().generation(), "): ", what));
}

// ---- one job's change ----

void Checker::CheckJob(const coordinator::State& before, const Record* old, const Record& now) {
  int index = -1;
  const bool known = absl::SimpleAtoi(now.job().spec().name().substr(1), &index) && index >= 0 &&
                     index < static_cast<int>(world_.jobs.size());
  if (!known) return Fail("jobs", now, "nobody has asked for it");
  JobTruth& truth = *world_.jobs[index];
  const int64_t number = JobNumber(now.job().name());
  if (truth.number != 0 && truth.number != number) {
    return Fail("requests", now, absl::StrCat("its request gave jobs/", truth.number, " before"));
  }
  truth.number = number;
  world_.by_number[number] = &truth;
  static const auto* const kNew = new Record;
  const Record& was = old == nullptr ? *kNew : *old;
  if (old == nullptr && !now.ranks().empty()) Fail("jobs", now, "it is new and has ranks");
  CheckLife(truth, was, now);
  if (!now.ranks().empty() &&
      (was.ranks().empty() || was.job().generation() != now.job().generation())) {
    CheckStart(before, truth, was, now);
  }
  CheckBudget(truth, was, now);
  CheckProgress(truth, was, now);
  Probes(was, now);
}

void Checker::CheckLife(JobTruth& truth, const Record& old, const Record& now) {
  const int64_t had = old.job().generation();
  const int64_t has = now.job().generation();
  if (has < had || (!truth.attempts.empty() && has < truth.attempts.rbegin()->first)) {
    const int64_t newest = truth.attempts.empty() ? had : truth.attempts.rbegin()->first;
    Fail("generations", now, absl::StrCat("its generation shrank from ", std::max(had, newest)));
  }
  if (has > had && now.ranks().empty()) Fail("generations", now, "it grew without an attempt");
  if (IsTerminal(old.job().state()) && !IsTerminal(now.job().state())) {
    if (!resumed_.contains(JobNumber(now.job().name())))
      Fail("terminal", now, absl::StrCat("it was over: ", StateName(old)));
    world_.Hit(Probe::kResumedAfterEnd);
  }
  if (now.newest_step() < old.newest_step()) {
    Fail("checkpoints", now,
         absl::StrCat("its newest step fell from ", old.newest_step(), " to ", now.newest_step()));
  }
  if (now.scheduling_version() < std::max(old.scheduling_version(), truth.update_version)) {
    Fail("answers", now, "an update that was answered is lost");
  }
  const v1::JobState state = now.job().state();
  if (truth.cancel_answered && state != v1::JOB_STATE_CANCELLING && !IsTerminal(state)) {
    Fail("answers", now, "its cancellation was answered");
  }
  const bool stays = state == v1::JOB_STATE_SUSPENDED || state == v1::JOB_STATE_SUSPENDING ||
                     state == v1::JOB_STATE_CANCELLING || IsTerminal(state);
  if (truth.suspend_answered && !stays) Fail("answers", now, "its suspension was answered");
  const bool rests =
      IsTerminal(state) || state == v1::JOB_STATE_SUSPENDED || state == v1::JOB_STATE_QUEUED;
  if (rests && !now.ranks().empty()) Fail("slots", now, "it rests and has ranks");
  if (IsTerminal(state) && !IsTerminal(old.job().state())) CheckEndOfJob(truth, old, now);
}

void Checker::CheckEndOfJob(const JobTruth& truth, const Record& old, const Record& now) {
  const v1::Job& job = now.job();
  switch (job.state()) {
    case v1::JOB_STATE_SUCCEEDED:
      if (!truth.finished) Fail("ends", now, "it has succeeded, and its last step is not saved");
      return;
    case v1::JOB_STATE_CANCELLED:
      if (!truth.cancel_asked) Fail("ends", now, "nobody has cancelled it");
      return;
    default:
      break;
  }
  switch (job.reason()) {
    case v1::JOB_REASON_TIME_LIMIT:
      if (truth.time_limit <= 0) Fail("ends", now, "it has no time limit");
      return;
    case v1::JOB_REASON_BUDGET_EXHAUSTED:
      world_.Hit(Probe::kBudgetExhausted);
      // One decision may also learn, behind the failure, of a checkpoint from before it.
      if (job.failures() <= truth.max_failures && now.best_step() <= old.best_step()) {
        Fail("ends", now, "its budget is not spent");
      }
      return;
    case v1::JOB_REASON_RANK_FAILED:
      if (truth.user_error_step < 0)
        Fail("ends", now, "it failed at once, and not by its user's error");
      return;
    default:
      Fail("ends", now,
           absl::StrCat("it failed for no reason: ", v1::JobReason_Name(job.reason())));
  }
}

// ---- attempts ----

void Checker::CheckStart(const coordinator::State& before, JobTruth& truth, const Record& old,
                         const Record& now) {
  if (now.job().generation() != old.job().generation() + 1) {
    Fail("generations", now,
         absl::StrCat("an attempt began after generation ", old.job().generation()));
  }
  if (!old.ranks().empty()) Fail("slots", now, "an attempt began before the last one was over");
  attempt_begin_[JobNumber(now.job().name())] = world_.now();
  CheckGang(before, now);
  if (now.start_checkpoint_step() < truth.committed) {
    Fail("checkpoints", now,
         absl::StrCat("it begins at step ", now.start_checkpoint_step(), ", and step ",
                      truth.committed, " was saved"));
  }
  for (const std::string& name : truth.depends_on) {
    const Record* other = before.FindJob(JobNumber(name));
    if (other == nullptr || other->job().state() != v1::JOB_STATE_SUCCEEDED) {
      Fail("dependencies", now, absl::StrCat(name, " has not succeeded"));
    }
    world_.Hit(Probe::kDependencyStarted);
  }
  const double limit = now.job().spec().scheduling().time_limit();
  if (limit > 0 && now.held_before() >= limit) Fail("time limits", now, "its time is up");
  if (!now.sizes().empty() && old.wanted_ranks() > now.ranks_size()) world_.Hit(Probe::kShrunk);
}

void Checker::CheckGang(const coordinator::State& before, const Record& now) {
  bool is_size = now.sizes().empty() && now.ranks_size() == now.job().spec().resources().ranks();
  for (const v1::JobSize& size : now.sizes()) is_size |= size.ranks() == now.ranks_size();
  if (!is_size) Fail("gangs", now, absl::StrCat("it cannot run with ", now.ranks_size(), " ranks"));
  for (const v1::RankRecord& rank : now.ranks()) {
    const v1::WorkerRecord* worker = before.FindWorker(rank.worker());
    const bool ready = worker != nullptr && worker->worker().state() == v1::WORKER_STATE_READY &&
                       !worker->leaving() && !worker->worker().has_drain() &&
                       !worker->worker().has_exclusion() &&
                       rank.slot() < worker->worker().slots_size();
    if (!ready) Fail("gangs", now, absl::StrCat(rank.worker(), " takes no ranks"));
    if (drained_.contains(WorkerIndex(rank.worker()))) {
      Fail("answers", now, absl::StrCat("it has a rank on ", rank.worker(), ", which is drained"));
    }
    if (ready &&
        coordinator::IsAvoided(*worker, world_.now() - world_.config.avoid_after_failure)) {
      world_.Hit(Probe::kHostAvoided);
    }
  }
}

void Checker::CheckBudget(const JobTruth& truth, const Record& old, const Record& now) {
  const int had = old.job().failures();
  const int has = now.job().failures();
  const bool ended = !old.ranks().empty() && now.ranks().empty();
  const bool again = now.best_step() > old.best_step() || IsTerminal(old.job().state());
  const auto attempt = truth.attempts.find(now.job().generation());
  const bool broke = attempt != truth.attempts.end() && attempt->second.broke;
  if (has > had && !ended) Fail("budget", now, "it was charged while nothing ended");
  if (has > had && !broke) {
    Fail("budget", now,
         absl::StrCat("it was charged, and nothing broke: ", now.job().reason_detail()));
  }
  if (has > had + 1) Fail("budget", now, "it was charged more than once");
  if (has < had && !again) Fail("budget", now, "it got its budget back without progress");
  if (has < had && again && !IsTerminal(old.job().state())) world_.Hit(Probe::kBudgetReset);
  // One decision may also learn of a checkpoint from before the failure: before or behind it.
  if (ended && now.job().state() == v1::JOB_STATE_RECOVERING && has != had + 1 &&
      !(again && has <= 1)) {
    Fail("budget", now,
         absl::StrCat("it failed and was not charged: ", had, " failures before, ", has, " after"));
  }
  if (!ended) return;
  const absl::Duration held = world_.now() - attempt_begin_[JobNumber(now.job().name())];
  const double counted = now.held_before() - old.held_before();
  if (std::abs(counted - absl::ToDoubleSeconds(held)) > 60) {
    Fail("time limits", now,
         absl::StrCat("it held its slots for ", absl::FormatDuration(held), ", and ", counted,
                      " s were counted"));
  }
}

void Checker::CheckProgress(const JobTruth& truth, const Record& old, const Record& now) {
  const v1::Progress& has = now.job().progress();
  const v1::Progress& had = old.job().progress();
  if (has.step() == had.step() && has.start_step() == had.start_step()) return;
  const auto attempt = truth.attempts.find(now.job().generation());
  const bool right = attempt != truth.attempts.end() && has.step() <= attempt->second.step &&
                     has.start_step() == attempt->second.start_step;
  if (!right) {
    Fail("fencing", now,
         absl::StrCat("it is said to be at step ", has.step(), " from ", has.start_step(),
                      ", which this generation is not"));
  }
}

// Its slot counts as the process's, although the rank counts as gone.
bool Checker::KeepsSlot(const v1::WorkerRecord& worker, const Record& record, int rank) {
  return std::any_of(worker.stale().begin(), worker.stale().end(),
                     [&](const v1::RankPlacementOfJob& stale) {
                       return stale.job() == record.job().name() &&
                              stale.generation() == record.job().generation() &&
                              stale.rank() == rank && stale.slot() == record.ranks(rank).slot();
                     });
}

// Of the ranks of one attempt: what is said of them is so.
void Checker::CheckRanks(const coordinator::Outcome& outcome, const coordinator::State& before,
                         const Record& old, const Record& now) {
  const int64_t number = JobNumber(now.job().name());
  const auto truth = world_.by_number.find(number);
  if (truth == world_.by_number.end() || now.job().generation() != old.job().generation()) return;
  const auto attempt = truth->second->attempts.find(now.job().generation());
  for (int i = 0; i < now.ranks_size() && i < old.ranks_size(); ++i) {
    const v1::RankRecord& rank = now.ranks(i);
    const v1::RankRecord& was = old.ranks(i);
    if (rank.worker() != was.worker() || rank.slot() != was.slot())
      Fail("rank maps", now, "a rank has moved");
    if (rank.state() == was.state() && rank.gone() == was.gone()) continue;
    const v1::RankState reached = attempt == truth->second->attempts.end() ||
                                          i >= static_cast<int>(attempt->second.ranks.size())
                                      ? v1::RANK_STATE_UNSPECIFIED
                                      : attempt->second.ranks[i].reached;
    const bool runs = rank.state() == v1::RANK_STATE_RUNNING && reached < v1::RANK_STATE_RUNNING;
    const bool done =
        rank.state() == v1::RANK_STATE_SUCCEEDED && reached != v1::RANK_STATE_SUCCEEDED;
    if (runs || done) {
      Fail("fencing", now,
           absl::StrCat("rank ", i, " is said to be ", v1::RankState_Name(rank.state()),
                        ", which it never was"));
    }
    if (!rank.gone() || was.gone()) continue;
    const auto changed = outcome.workers.find(rank.worker());
    const v1::WorkerRecord* worker =
        changed != outcome.workers.end() ? &changed->second : before.FindWorker(rank.worker());
    const bool down = worker != nullptr && worker->worker().state() == v1::WORKER_STATE_DOWN;
    const bool kept = worker != nullptr && KeepsSlot(*worker, now, i);
    const auto& processes = world_.agents[WorkerIndex(rank.worker())]->processes();
    const bool there = processes.contains({number, now.job().generation(), i});
    if (!down && !kept && there) {
      Fail("slots", now, absl::StrCat("rank ", i, " counts as gone, and its process is there"));
    }
  }
}

void Checker::CheckPreemption(const coordinator::State& before, const Record& old,
                              const Record& now) {
  if (now.leaves_for().empty() || now.leaves_for() == old.leaves_for()) return;
  const int64_t victim = JobNumber(now.job().name());
  const int64_t winner = JobNumber(now.leaves_for());
  world_.Hit(Probe::kPreempted);
  if (old.job().state() == v1::JOB_STATE_STARTING) world_.Hit(Probe::kPreemptedWhileStarting);
  const Record* other = before.FindJob(winner);
  if (other == nullptr) return Fail("preemption", now, "nobody needs its slots");
  const v1::SchedulingSpec& mine = now.job().spec().scheduling();
  const v1::SchedulingSpec& its = other->job().spec().scheduling();
  if (mine.queue() != its.queue()) {
    world_.Hit(Probe::kPreemptedAcrossQueues);
  } else if (mine.priority() >= its.priority()) {
    Fail("preemption", now,
         absl::StrCat("it makes room for ", now.leaves_for(), " of no higher priority"));
  }
  made_leave_[winner].insert(victim);
  if (made_leave_[victim].contains(winner)) {
    Fail("preemption", now, absl::StrCat("it and ", now.leaves_for(), " make each other leave"));
  }
}

void Checker::Probes(const Record& old, const Record& now) {
  const v1::JobState had = old.job().state();
  const v1::AttemptEnding ending = now.ending();
  const auto hit = [&](bool condition, Probe probe) {
    if (condition) world_.Hit(probe);
  };
  if (ending != old.ending()) {
    hit(absl::StrContains(now.job().reason_detail(), "is drained"), Probe::kDrainDeadline);
    hit(ending == v1::ATTEMPT_ENDING_SUSPEND && had == v1::JOB_STATE_RECOVERING,
        Probe::kSuspendedWhileRecovering);
    hit(ending == v1::ATTEMPT_ENDING_CANCEL && had == v1::JOB_STATE_STARTING,
        Probe::kCancelledWhileStarting);
    hit(ending == v1::ATTEMPT_ENDING_CANCEL && had == v1::JOB_STATE_SUSPENDING,
        Probe::kCancelledWhileSuspending);
    hit(ending == v1::ATTEMPT_ENDING_TIME_LIMIT, Probe::kTimeLimit);
    hit(ending == v1::ATTEMPT_ENDING_TIME_LIMIT && had == v1::JOB_STATE_STARTING,
        Probe::kTimeLimitWhileStarting);
    hit(ending == v1::ATTEMPT_ENDING_RESIZE, Probe::kResized);
    hit(now.job().reason() == v1::JOB_REASON_STRAGGLER && ending == v1::ATTEMPT_ENDING_REQUEUE,
        Probe::kStragglerReplaced);
  }
  hit(had == v1::JOB_STATE_SUSPENDING && now.job().state() == v1::JOB_STATE_PREEMPTING,
      Probe::kResumedWhileSuspending);
  hit(had == v1::JOB_STATE_RECOVERING && old.ranks().empty() &&
          now.job().state() == v1::JOB_STATE_SUSPENDED,
      Probe::kSuspendedWhileRecovering);
  hit(!old.first_failure_peer_lost() && now.first_failure_peer_lost(), Probe::kPeerLostBeforeCause);
  const int ranks = std::min(old.ranks_size(), now.ranks_size());
  for (int i = 0; i < ranks; ++i) {
    const bool lost = now.ranks(i).gone() && !old.ranks(i).gone() &&
                      now.ranks(i).state() == v1::RANK_STATE_FAILED;
    hit(lost && ending == v1::ATTEMPT_ENDING_PREEMPT, Probe::kLostWhilePreempting);
    hit(lost && ending == v1::ATTEMPT_ENDING_RESIZE, Probe::kLostWhileResizing);
    const v1::StopKind stop = now.ranks(i).stop();
    const v1::StopKind stopped = old.ranks(i).stop();
    hit(stop == v1::STOP_KIND_ABORT && stopped == v1::STOP_KIND_GRACEFUL, Probe::kAbortAfterGrace);
    hit(stop == v1::STOP_KIND_KILL && stopped == v1::STOP_KIND_ABORT, Probe::kKillAfterAbort);
  }
}

}  // namespace milepost::sim
