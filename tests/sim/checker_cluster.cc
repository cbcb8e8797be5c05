// What holds between jobs, of workers, and over restarts.
#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/proto_time.h"
#include "tests/sim/agent.h"
#include "tests/sim/checker.h"

namespace milepost::sim {
namespace {

using coordinator::IsTerminal;
using coordinator::JobName;
using coordinator::JobNumber;

constexpr int kMostTicksAMinute = 1500;
constexpr absl::Duration kMostWait = absl::Milliseconds(10);

// Who has spoken.
struct Speaker {
  const std::string* operator()(const coordinator::WorkerHeartbeat& event) const {
    return &event.worker;
  }
  const std::string* operator()(const coordinator::RankReported& event) const {
    return &event.worker;
  }
  const std::string* operator()(const coordinator::RankProgressed& event) const {
    return &event.worker;
  }
  template <typename Other>
  const std::string* operator()(const Other&) const {
    return nullptr;
  }
};

}  // namespace

void Checker::Decided(const coordinator::State& state,
                      const std::vector<coordinator::Event>& events,
                      const coordinator::Outcome& outcome) {
  heard_now_.clear();
  taken_back_.clear();
  deleted_.clear();
  resumed_.clear();
  decided_ = world_.now();
  for (size_t i = 0; i < events.size(); ++i) {
    if (!outcome.results[i].status.ok()) continue;
    const auto* resumed = std::get_if<coordinator::WorkerResumed>(&events[i]);
    if (resumed != nullptr) taken_back_.insert(WorkerIndex(resumed->worker));
    const auto* deleted = std::get_if<coordinator::WorkerDeleted>(&events[i]);
    if (deleted != nullptr) {
      taken_back_.insert(WorkerIndex(deleted->worker));
      deleted_.insert(WorkerIndex(deleted->worker));
    }
    const auto* job = std::get_if<coordinator::JobResumed>(&events[i]);
    if (job != nullptr) resumed_.insert(JobNumber(job->job));
    const auto* health = std::get_if<coordinator::HealthReported>(&events[i]);
    if (health != nullptr && health->report.problem().empty()) {
      taken_back_.insert(WorkerIndex(health->worker));
    }
    const std::string* speaker = std::visit(Speaker{}, events[i]);
    if (speaker != nullptr) heard_now_.push_back(WorkerIndex(*speaker));
    const auto* hello = std::get_if<coordinator::WorkerHello>(&events[i]);
    if (hello == nullptr) continue;
    heard_now_.push_back(WorkerIndex(coordinator::WorkerName(hello->hello.worker_id())));
    const v1::WorkerRecord* known =
        state.FindWorker(coordinator::WorkerName(hello->hello.worker_id()));
    if (known == nullptr) {
      const int index = WorkerIndex(coordinator::WorkerName(hello->hello.worker_id()));
      if (forgotten_.contains(index)) world_.Hit(Probe::kForgottenThenBack);
      continue;
    }
    const bool newer = hello->hello.incarnation() > known->worker().incarnation();
    if (newer) world_.Hit(Probe::kHelloOfNewIncarnation);
    if (known->worker().state() == v1::WORKER_STATE_DOWN) world_.Hit(Probe::kDownThenBack);
    for (const v1::RankReport& report : hello->hello.ranks()) {
      if (report.state() >= v1::RANK_STATE_SUCCEEDED) world_.Hit(Probe::kHelloWithEndedRank);
    }
    for (const int64_t number : state.WithRanksOn(known->worker().name())) {
      for (const v1::RankRecord& rank : state.FindJob(number)->ranks()) {
        const bool never = rank.worker() == known->worker().name() && !rank.gone() &&
                           rank.state() == v1::RANK_STATE_UNSPECIFIED;
        if (never && !newer) world_.Hit(Probe::kHelloWithoutStartedRank);
      }
    }
    // The processes of what it was before are gone.
    for (const int64_t number : state.WithRanksOn(known->worker().name())) {
      if (newer) Broke(number, state.FindJob(number)->job().generation());
    }
  }
  for (const auto& result : outcome.results) {
    if (result.status.message().find("is older than the known") != std::string::npos) {
      world_.Hit(Probe::kHelloOfOldIncarnation);
    }
  }
}

void Checker::Committed(const coordinator::State& before, const coordinator::Outcome& outcome) {
  for (const auto& [name, record] : outcome.workers) {
    const v1::WorkerRecord* old = before.FindWorker(name);
    CheckWorker(old, record);
    CheckGivenUp(before, old, record);
    const bool lost = record.worker().state() == v1::WORKER_STATE_DOWN && old != nullptr &&
                      old->worker().state() != v1::WORKER_STATE_DOWN;
    if (!lost) continue;
    for (const int64_t number : before.WithRanksOn(name)) {
      Broke(number, before.FindJob(number)->job().generation());
    }
  }
  for (const std::string& name : outcome.forgotten_workers) CheckForgotten(before, name);
  for (const auto& [number, record] : outcome.jobs) {
    const Record* old = before.FindJob(number);
    if (old != nullptr && old->scheduling_version() != record.scheduling_version()) RightsChanged();
    if (old != nullptr) CheckRanks(outcome, before, *old, record);
    CheckJob(before, old, record);
    const bool ended = old != nullptr && !old->ranks().empty() && record.ranks().empty();
    if (ended) world_.by_number.at(number)->attempts[record.job().generation()].over = true;
    if (old != nullptr) CheckPreemption(before, *old, record);
    in_doubt_[number] = record;
  }
  for (const auto& [id, record] : outcome.queues) {
    RightsChanged();
    if (record.has_value() && record->version() < queue_versions_[id]) {
      world_.Fail("answers", id,
                  absl::StrCat("queue ", id, ": a change that was answered is lost"));
    }
  }
  CheckSlots(before, outcome);
  if (outcome.view != nullptr) CheckLimits(before, outcome);
}

void Checker::Applied() {
  in_doubt_.clear();
  for (const int worker : heard_now_) heard_[worker] = decided_;
  heard_now_.clear();
}

void Checker::Refused() { heard_now_.clear(); }

void Checker::Ticked() {
  if (world_.now() - minute_ > absl::Minutes(1)) {
    minute_ = world_.now();
    ticks_ = 0;
  }
  if (++ticks_ > kMostTicksAMinute) world_.Fail("loop", "", "the loop turns for nothing");
}

void Checker::LookedAt(absl::Time since) {
  const absl::Duration waited = world_.now() - since;
  if (waited <= kMostWait) return;
  world_.Fail("loop", "",
              absl::StrCat("a post waited for ", absl::FormatDuration(waited),
                           " while the loop had nothing to do"));
}

void Checker::ActedWhenDeposed() {
  world_.Fail("fencing", "", "it acts, and another coordinator serves");
}

void Checker::CheckSlots(const coordinator::State& before, const coordinator::Outcome& outcome) {
  for (const auto& [number, record] : outcome.jobs) {
    const Record* old = before.FindJob(number);
    if (old == nullptr) continue;
    for (const v1::RankRecord& rank : old->ranks()) {
      const auto owner = owners_.find({rank.worker(), rank.slot()});
      if (owner != owners_.end() && owner->second == number) owners_.erase(owner);
    }
  }
  for (const auto& [number, record] : outcome.jobs) {
    for (const v1::RankRecord& rank : record.ranks()) {
      if (rank.gone()) continue;
      const auto [owner, added] = owners_.try_emplace({rank.worker(), rank.slot()}, number);
      if (added) continue;
      Fail("slots", record,
           absl::StrCat("slot ", rank.slot(), " of ", rank.worker(), " is ", JobName(owner->second),
                        "'s"));
    }
  }
}

// No start and no growth takes a queue over its limit.
void Checker::CheckLimits(const coordinator::State& before, const coordinator::Outcome& outcome) {
  std::set<std::pair<std::string, v1::DeviceKind>> grown;
  const Record* started = nullptr;
  for (const auto& [number, record] : outcome.jobs) {
    const Record* old = before.FindJob(number);
    const bool starts = old != nullptr && old->ranks().empty() && !record.ranks().empty();
    if (!starts) continue;
    started = &record;
    const v1::JobSpec& spec = record.job().spec();
    grown.emplace(spec.scheduling().queue(), spec.resources().device());
  }
  for (const auto& [queue, device] : grown) {
    const v1::QueueRecord* record = before.FindQueue(queue);
    if (record == nullptr) continue;
    for (const v1::SlotQuota& quota : record->queue().quotas()) {
      if (quota.device() != device || !quota.has_limit()) continue;
      int used = 0;
      const auto count = [&, &queue = queue, &device = device](const Record& job) {
        const v1::JobSpec& spec = job.job().spec();
        if (spec.scheduling().queue() != queue || spec.resources().device() != device) return;
        for (const v1::RankRecord& rank : job.ranks()) used += rank.gone() ? 0 : 1;
      };
      for (const int64_t number : before.with_ranks()) {
        if (!outcome.jobs.contains(number)) count(*before.FindJob(number));
      }
      for (const auto& [number, job] : outcome.jobs) count(job);
      if (used <= quota.limit()) continue;
      Fail("limits", *started,
           absl::StrCat("queue ", queue, " has ", used, " slots of at most ", quota.limit()));
    }
  }
  for (const auto& [kind, view] : outcome.view->kinds) {
    for (const auto& [job, waiting] : view.waiting) {
      if (waiting.code == coordinator::WaitCode::kLimit) world_.Hit(Probe::kQueueLimitWait);
      if (waiting.code == coordinator::WaitCode::kFailedDependency)
        world_.Hit(Probe::kDependencyFailed);
      const Record* head = before.FindJob(job);
      if (waiting.code == coordinator::WaitCode::kSlots && started != nullptr && head != nullptr &&
          started->queue_order() > head->queue_order()) {
        world_.Hit(Probe::kBackfilled);
      }
    }
  }
}

void Checker::CheckWorker(const v1::WorkerRecord* old, const v1::WorkerRecord& now) {
  const v1::Worker& worker = now.worker();
  const bool as_before = old != nullptr && worker.state() == old->worker().state() &&
                         worker.incarnation() == old->worker().incarnation() &&
                         worker.has_drain() == old->worker().has_drain() &&
                         now.stale_size() == old->stale_size() &&
                         worker.has_exclusion() == old->worker().has_exclusion();
  if (as_before) return;
  const int index = WorkerIndex(worker.name());
  const auto fail = [&](const char* checker, const std::string& what) {
    world_.Fail(checker, worker.name(), absl::StrCat(worker.name(), ": ", what));
  };
  if (drained_.contains(index) && !worker.has_drain()) fail("answers", "its drain was answered");
  if (old == nullptr) return;
  CheckExclusion(old->worker(), worker);
  if (now.stale_size() > old->stale_size()) world_.Hit(Probe::kStaleReported);
  if (now.stale_size() < old->stale_size()) world_.Hit(Probe::kStaleEnded);
  if (worker.incarnation() < old->worker().incarnation())
    fail("incarnations", "it is older than known");
  const v1::WorkerState had = old->worker().state();
  if (worker.state() == v1::WORKER_STATE_DRAINED && had != worker.state())
    world_.Hit(Probe::kDrained);
  if (worker.state() != v1::WORKER_STATE_DOWN || had == v1::WORKER_STATE_DOWN) return;
  if (now.leaving()) return;  // it has said so, and gone
  world_.Hit(Probe::kLeaseExpired);
  const absl::Time heard = std::max(heard_[index], restarted_);
  if (world_.now() - heard < world_.config.lease) {
    fail("leases", absl::StrCat("counts as down, and was heard ",
                                absl::FormatDuration(world_.now() - heard_[index]), " ago"));
  }
}

void Checker::CheckForgotten(const coordinator::State& before, const std::string& name) {
  world_.Hit(Probe::kForgotten);
  const int index = WorkerIndex(name);
  forgotten_.insert(index);
  const auto fail = [&](const char* checker, const std::string& what) {
    world_.Fail(checker, name, absl::StrCat(name, ": forgotten, and ", what));
  };
  const v1::WorkerRecord* old = before.FindWorker(name);
  if (old == nullptr) return fail("answers", "not known");
  if (deleted_.contains(index)) return;  // what it was like by then is not known here
  if (old->worker().state() != v1::WORKER_STATE_DOWN) fail("leases", "not down");
  if (drained_.contains(index)) fail("answers", "its drain was answered");
  if (old->worker().has_exclusion()) fail("gangs", "has passed no health check");
  if (!before.WithRanksOn(name).empty()) fail("slots", "jobs have ranks there");
}

// A process that is there still, of a rank that counts as gone from now on. One that outlived its
// agent counts so at once, and is killed then.
void Checker::CheckGivenUp(const coordinator::State& before, const v1::WorkerRecord* old,
                           const v1::WorkerRecord& now) {
  if (old == nullptr || now.stale_size() <= old->stale_size()) return;
  if (now.worker().incarnation() > old->worker().incarnation()) return;
  for (const v1::RankPlacementOfJob& stale : now.stale()) {
    const Record* job = before.FindJob(JobNumber(stale.job()));
    const bool was_there = job != nullptr && job->job().generation() == stale.generation() &&
                           stale.rank() < job->ranks_size() && !job->ranks(stale.rank()).gone();
    if (!was_there) continue;
    world_.Hit(Probe::kGivenUp);
    if (job->ranks(stale.rank()).stop() != v1::STOP_KIND_KILL) {
      Fail("slots", *job, "a process was given up that nobody has killed");
    }
  }
}

void Checker::CheckExclusion(const v1::Worker& old, const v1::Worker& now) {
  if (now.has_exclusion() == old.has_exclusion()) return;
  world_.Hit(now.has_exclusion() ? Probe::kExcluded : Probe::kTakenBack);
  if (now.has_exclusion() || taken_back_.contains(WorkerIndex(now.name()))) return;
  world_.Fail("gangs", now.name(),
              absl::StrCat(now.name(), " is taken back, and has passed no health check"));
}

// ---- restarts ----

void Checker::Loaded(const coordinator::State& before, const coordinator::State& loaded) {
  restarted_ = world_.now();
  for (const auto& [number, record] : before.jobs()) {
    const auto in_doubt = in_doubt_.find(number);
    const Record& expected = in_doubt == in_doubt_.end() ? record : in_doubt->second;
    const Record* is = loaded.FindJob(number);
    if (is == nullptr) return Fail("jobs", record, "it is lost");
    CheckKept(expected, *is);
  }
  for (const auto& [number, record] : in_doubt_) {
    if (loaded.FindJob(number) == nullptr) Fail("jobs", record, "it was stored, and is lost");
  }
  for (const auto& [name, record] : loaded.workers()) {
    const v1::WorkerRecord* old = before.FindWorker(name);
    if (old != nullptr && old->worker().has_exclusion()) {
      CheckExclusion(old->worker(), record.worker());
    }
    if (drained_.contains(WorkerIndex(name)) && !record.worker().has_drain()) {
      world_.Fail("answers", name, absl::StrCat(name, ": its drain was answered, and is lost"));
    }
  }
  owners_.clear();
  for (const int64_t number : loaded.with_ranks()) {
    for (const v1::RankRecord& rank : loaded.FindJob(number)->ranks()) {
      if (!rank.gone()) owners_[{rank.worker(), rank.slot()}] = number;
    }
  }
  in_doubt_.clear();
}

// All that was acted on.
void Checker::CheckKept(const Record& expected, const Record& loaded) {
  const v1::Job& was = expected.job();
  const v1::Job& is = loaded.job();
  const auto differs = [&]() -> const char* {
    if (was.state() != is.state()) return "state";
    if (was.generation() != is.generation()) return "generation";
    if (was.attempts() != is.attempts()) return "attempts";
    if (was.cancel_requested() != is.cancel_requested()) return "cancellation";
    if (was.latest_checkpoint() != is.latest_checkpoint()) return "newest checkpoint";
    if (was.preemptions() != is.preemptions()) return "preemptions";
    if (expected.request_id() != loaded.request_id()) return "request id";
    if (expected.queue_order() != loaded.queue_order()) return "place in the queue";
    if (expected.ending() != loaded.ending()) return "ending";
    if (expected.admission() != loaded.admission()) return "admission";
    if (expected.leaves_for() != loaded.leaves_for()) return "job it leaves for";
    if (expected.held_before() != loaded.held_before()) return "time it held slots";
    if (expected.scheduling_version() != loaded.scheduling_version()) return "version";
    if (IsSet(expected.stop_deadline()) != IsSet(loaded.stop_deadline())) return "stop deadline";
    if (expected.ranks_size() != loaded.ranks_size()) return "number of ranks";
    return nullptr;
  }();
  if (differs != nullptr)
    return Fail("durability", loaded, absl::StrCat("its ", differs, " was not stored"));
  for (int i = 0; i < expected.ranks_size(); ++i) {
    const v1::RankRecord& a = expected.ranks(i);
    const v1::RankRecord& b = loaded.ranks(i);
    const bool same = a.worker() == b.worker() && a.slot() == b.slot() && a.gone() == b.gone() &&
                      a.stop() == b.stop() && a.state() == b.state();
    if (!same) return Fail("durability", loaded, absl::StrCat("rank ", i, " was not stored"));
  }
}

// ---- what leaves, and what happens ----

void Checker::Sent(const coordinator::Action& action) {
  if (!action.message.has_start_rank()) return;
  const v1::StartRank& start = action.message.start_rank();
  const auto truth = world_.by_number.find(JobNumber(start.job()));
  if (truth == world_.by_number.end()) return;
  AttemptTruth& attempt = truth->second->attempts[start.generation()];
  const auto fail = [&](const std::string& what) {
    world_.Fail("rank maps", start.job(),
                absl::StrCat(start.job(), " generation ", start.generation(), ": ", what));
  };
  if (attempt.world == 0) {
    attempt.world = start.world();
    attempt.checkpoint_step = start.checkpoint_step();
    attempt.ranks.resize(static_cast<size_t>(start.world()));
  }
  if (attempt.world != start.world() || start.rank() >= attempt.world) return fail("two sizes");
  if (attempt.checkpoint_step != start.checkpoint_step()) return fail("two checkpoints");
  RankTruth& rank = attempt.ranks[start.rank()];
  const int worker = WorkerIndex(action.worker);
  if (rank.worker >= 0 && (rank.worker != worker || rank.slot != start.slot())) {
    return fail(absl::StrCat("rank ", start.rank(), " was told to be on ", WorkerName(rank.worker),
                             " and on ", action.worker));
  }
  rank.worker = worker;
  rank.slot = start.slot();
}

void Checker::Saved(int64_t job, int64_t generation, int64_t number) {
  const JobTruth& truth = *world_.by_number.at(job);
  const auto attempt = truth.attempts.find(generation);
  if (attempt != truth.attempts.end() && attempt->second.over) {
    world_.Fail("fencing", JobName(job),
                absl::StrCat(JobName(job), ": generation ", generation, " has saved checkpoints/",
                             number, ", and is over"));
  }
  if (!truth.attempts.empty() && generation < truth.attempts.rbegin()->first) {
    world_.Fail(
        "fencing", JobName(job),
        absl::StrCat(JobName(job), ": generation ", generation, " has saved checkpoints/", number,
                     ", and generation ", truth.attempts.rbegin()->first, " has begun"));
  }
}

void Checker::Reached(int64_t job, int64_t generation, int rank, v1::RankState state) {
  const auto truth = world_.by_number.find(job);
  if (truth == world_.by_number.end()) return;
  AttemptTruth& attempt = truth->second->attempts[generation];
  if (rank < static_cast<int>(attempt.ranks.size())) attempt.ranks[rank].reached = state;
}

void Checker::ProcessStarted(const RankKey& key, int worker, int slot) {
  const auto fail = [&](const std::string& what) {
    world_.Fail("rank maps", JobName(key.job),
                absl::StrCat(JobName(key.job), " generation ", key.generation, " rank ", key.rank,
                             ": ", what));
  };
  const auto truth = world_.by_number.find(key.job);
  if (truth == world_.by_number.end()) return fail("a process of a job that is not there");
  AttemptTruth& attempt = truth->second->attempts[key.generation];
  if (key.rank >= static_cast<int>(attempt.ranks.size())) return fail("a process of no rank");
  RankTruth& rank = attempt.ranks[key.rank];
  if (++rank.starts > 1) fail("it was started twice");
  if (rank.worker != worker || rank.slot != slot) fail("it runs elsewhere than told");
}

void Checker::Began(const JobTruth& truth, int64_t generation, int64_t step) {
  const auto attempt = truth.attempts.find(generation);
  if (attempt == truth.attempts.end()) return;
  if (step >= attempt->second.checkpoint_step) return;
  world_.Fail("checkpoints", JobName(truth.number), "it begins before its checkpoint");
}

void Checker::Stepped(int64_t job, int64_t generation, int64_t start_step, int64_t step) {
  const auto truth = world_.by_number.find(job);
  if (truth == world_.by_number.end()) return;
  AttemptTruth& attempt = truth->second->attempts[generation];
  attempt.start_step = start_step;
  attempt.step = std::max(attempt.step, step);
}

void Checker::Broke(int64_t job, int64_t generation) {
  const auto truth = world_.by_number.find(job);
  if (truth != world_.by_number.end()) truth->second->attempts[generation].broke = true;
}

void Checker::DrainAnswered(int worker, bool drained) {
  drained ? void(drained_.insert(worker)) : void(drained_.erase(worker));
}

void Checker::QueueAnswered(const std::string& id, int64_t version) {
  queue_versions_[id] = std::max(queue_versions_[id], version);
}

void Checker::End(const coordinator::State& state) {
  for (const int64_t number : state.active()) {
    const Record& record = *state.FindJob(number);
    const v1::Job job = coordinator::Describe(state, record);
    Fail("liveness", record, absl::StrCat("it never ended: ", job.reason_detail()));
  }
  for (const auto& [name, record] : state.workers()) {
    const auto& processes = world_.agents[WorkerIndex(name)]->processes();
    for (const v1::RankPlacementOfJob& stale : record.stale()) {
      const auto process =
          processes.find({JobNumber(stale.job()), stale.generation(), stale.rank()});
      if (process != processes.end() && process->second->unkillable) continue;
      world_.Fail(
          "slots", name,
          absl::StrCat(name, ": a slot is kept for a process of ", stale.job(),
                       process == processes.end() ? " that is not there" : " that nobody kills"));
    }
  }
  for (const auto& agent : world_.agents) {
    const StreamPtr stream = agent->stream();
    if (!agent->alive() || stream == nullptr || !stream->welcomed || !stream->server_open) continue;
    const std::string name = WorkerName(stream->worker);
    const v1::WorkerRecord* record = state.FindWorker(name);
    if (record != nullptr && coordinator::IsConnected(record->worker())) continue;
    world_.Fail("liveness", name,
                absl::StrCat(name, ": its stream is open, and it counts as gone"));
  }
  for (const auto& truth : world_.jobs) {
    if (truth->acknowledged && state.FindJob(truth->number) == nullptr) {
      world_.Fail("jobs", JobName(truth->number), "an accepted job is lost");
    }
  }
}

}  // namespace milepost::sim
