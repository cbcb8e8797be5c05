// What happens to a job's attempt.
#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/philox.h"
#include "common/proto_time.h"
#include "common/rank_state.h"
#include "common/spec/sizes.h"
#include "common/utf8.h"
#include "coordinator/core/job_states.h"
#include "coordinator/core/stragglers.h"
#include "coordinator/core/transition.h"

namespace milepost::coordinator {

namespace {

constexpr int64_t kCopiedInASecond = int64_t{1} << 30;
constexpr int kMaxLastLines = 100;
constexpr double kBackoffJitter = 0.25;  // of the pause, that may be cut
constexpr size_t kMaxLineBytes = 1024;
constexpr size_t kMaxMessageBytes = 4096;

v1::Failure FailureOf(const v1::RankReport& report, const std::string& worker, absl::Time now) {
  v1::Failure failure;
  failure.set_class_(report.failure_class());
  failure.set_rank(report.rank());
  failure.set_worker(worker);
  failure.set_generation(report.generation());
  std::string message = report.message();
  if (message.empty() && report.signal() != 0) {
    message = absl::StrCat("killed by signal ", report.signal());
  } else if (message.empty()) {
    message = absl::StrCat("exited with code ", report.exit_code());
  }
  failure.set_message(CutUtf8(message, kMaxMessageBytes));
  const int first = std::max(0, report.last_lines_size() - kMaxLastLines);
  for (int i = first; i < report.last_lines_size(); ++i) {
    failure.add_last_lines(CutUtf8(report.last_lines(i), kMaxLineBytes));
  }
  *failure.mutable_time() = IsSet(report.time()) ? report.time() : ToProto(now);
  return failure;
}

constexpr int kMostProductive = 16;

// Steps from `step` on are lost. Returns the seconds of the others.
double CutProductive(int64_t step, google::protobuf::RepeatedPtrField<v1::ProductiveSteps>* all) {
  double seconds = 0;
  for (v1::ProductiveSteps& piece : *all) {
    const int64_t end = std::max(piece.begin(), std::min(piece.end(), step));
    const auto had = static_cast<double>(piece.end() - piece.begin());
    const double share = had > 0 ? static_cast<double>(end - piece.begin()) / had : 0;
    piece.set_seconds(piece.seconds() * share);
    piece.set_end(end);
    seconds += piece.seconds();
  }
  all->erase(std::remove_if(all->begin(), all->end(),
                            [](const v1::ProductiveSteps& p) { return p.end() <= p.begin(); }),
             all->end());
  return seconds;
}

void AddProductive(const v1::Progress& progress, v1::JobRecord* record) {
  if (progress.step() <= progress.start_step() || progress.productive_seconds() <= 0) return;
  auto* all = record->mutable_productive();
  if (all->size() == kMostProductive) {
    // The oldest ones count together.
    all->Mutable(1)->set_begin(all->Get(0).begin());
    all->Mutable(1)->set_seconds(all->Get(0).seconds() + all->Get(1).seconds());
    all->DeleteSubrange(0, 1);
  }
  v1::ProductiveSteps* piece = all->Add();
  piece->set_begin(progress.start_step());
  piece->set_end(progress.step());
  piece->set_seconds(progress.productive_seconds());
}

JobCause CauseOf(v1::AttemptEnding ending) {
  switch (ending) {
    case v1::ATTEMPT_ENDING_CANCEL:
      return JobCause::kCancelledHolding;
    case v1::ATTEMPT_ENDING_TIME_LIMIT:
      return JobCause::kTimeLimit;
    case v1::ATTEMPT_ENDING_SUSPEND:
      return JobCause::kSuspendedHolding;
    case v1::ATTEMPT_ENDING_PREEMPT:
      return JobCause::kPreempted;
    case v1::ATTEMPT_ENDING_RESIZE:
      return JobCause::kGrows;
    case v1::ATTEMPT_ENDING_REQUEUE:
      return JobCause::kToldToLeave;
    default:
      return JobCause::kRankFailed;
  }
}

// Jobs that fail together, as those of one host do, start again at different times. By the job's
// number and its failure's, so that the same decision has the same time.
absl::Duration BackoffOf(const v1::JobRecord& record, absl::Duration cap) {
  const v1::Job& job = record.job();
  const double doubled =
      job.spec().restart().backoff_seconds() * std::pow(2.0, std::min(job.failures() - 1, 30));
  const auto bits = PhiloxKey(static_cast<uint64_t>(JobNumber(job.name())),
                              static_cast<uint64_t>(job.failures()))[0];
  const double share = 1 - kBackoffJitter * std::ldexp(static_cast<double>(bits), -32);
  return std::min(absl::Seconds(doubled), cap) * share;
}

// A rank that keeps its state copies up to all of its device's memory to the host's, and makes
// checksums of it.
absl::Duration AbortTime(const v1::JobRecord& record, const Config& config) {
  int64_t bytes = record.slot_bytes();
  for (const v1::JobSize& size : record.sizes()) bytes = std::max(bytes, size.slot_bytes());
  const absl::Duration copying = absl::Seconds(bytes / kCopiedInASecond);
  return std::min(config.abort_stop + copying, std::max(config.abort_stop, config.graceful_stop));
}

// CANCEL overrides every ending, SUSPEND those after which the job would go on; else the first one
// stands.
bool Overrides(v1::AttemptEnding ending, v1::AttemptEnding known) {
  if (known == v1::ATTEMPT_ENDING_NONE || ending == v1::ATTEMPT_ENDING_CANCEL) return true;
  return ending == v1::ATTEMPT_ENDING_SUSPEND && known != v1::ATTEMPT_ENDING_CANCEL &&
         known != v1::ATTEMPT_ENDING_TIME_LIMIT;
}

int Urgency(v1::StopKind kind) {
  switch (kind) {
    case v1::STOP_KIND_KILL:
      return 3;
    case v1::STOP_KIND_ABORT:
      return 2;
    case v1::STOP_KIND_GRACEFUL:
      return 1;
    default:
      return 0;
  }
}

// Whether a rank still has leave to save a checkpoint before it ends.
bool AnySaves(const v1::JobRecord& record) {
  return std::any_of(record.ranks().begin(), record.ranks().end(), [](const v1::RankRecord& rank) {
    return !rank.gone() && rank.stop() == v1::STOP_KIND_GRACEFUL;
  });
}

// Progress of the job is rank 0's: it has the gang's means. The first of an attempt says how much
// of those before still counts; one that begins beyond all earlier ones has made progress.
void TakeProgress(v1::JobRecord* record, const v1::Progress& progress) {
  v1::Job* job = record->mutable_job();
  if (job->progress().productive_seconds() <= 0 && !record->productive().empty()) {
    record->set_productive_before(
        CutProductive(progress.start_step(), record->mutable_productive()));
  }
  if (progress.start_step() > record->best_step()) {
    record->set_best_step(progress.start_step());
    job->set_failures(0);
  }
  *job->mutable_progress() = progress;
  job->set_productive_seconds(record->productive_before() + progress.productive_seconds());
  if (!IsSet(job->first_step_time()) && IsSet(progress.first_step_time())) {
    *job->mutable_first_step_time() = progress.first_step_time();
  }
}

}  // namespace

void Transition::Checkpoints(const std::string& name, const std::string& newest,
                             int64_t newest_step) {
  const int64_t number = JobNumber(name);
  const v1::JobRecord* known = Job(number);
  if (known == nullptr) return;
  if (known->job().latest_checkpoint() == newest && known->newest_step() == newest_step) return;
  v1::JobRecord& record = Change(number);
  record.mutable_job()->set_latest_checkpoint(newest);
  record.set_newest_step(newest_step);
  if (newest_step > record.best_step()) {
    record.set_best_step(newest_step);
    record.mutable_job()->set_failures(0);
  }
}

bool Transition::Progressed(const std::string& worker, const v1::RankProgress& report) {
  Renew(worker);
  const int64_t number = JobNumber(report.job());
  const v1::JobRecord* known = Job(number);
  if (known == nullptr || known->job().generation() != report.generation()) return false;
  const int rank = report.rank();
  if (rank < 0 || rank >= known->ranks_size() || known->ranks(rank).worker() != worker)
    return false;
  const v1::Progress& progress = report.progress();
  const double own = progress.step_seconds() - progress.communication_wait_seconds();
  outcome_.speeds.push_back({.job = number,
                             .generation = report.generation(),
                             .rank = rank,
                             .world = known->ranks_size(),
                             .step = progress.step(),
                             .seconds = own,
                             .time = now_,
                             .memory = {.planned = progress.planned_bytes(),
                                        .allocated = progress.allocated_bytes(),
                                        .required = progress.required_bytes(),
                                        .peak_resident = progress.peak_resident_bytes()}});
  if (rank != 0) return false;
  v1::JobRecord& record = ChangeSoft(number);
  NoteProgress(progress, &record);
  return NoteStragglers(number, &record);
}

void Transition::NoteProgress(const v1::Progress& progress, v1::JobRecord* record) {
  TakeProgress(record, progress);
  outcome_.reports.push_back({.job = JobNumber(record->job().name()),
                              .generation = record->job().generation(),
                              .time = now_,
                              .progress = progress});
}

bool Transition::NoteStragglers(int64_t number, v1::JobRecord* record) {
  std::vector<v1::Straggler> stragglers =
      state_.speeds().Stragglers(number, record->job().generation(), now_, config_.straggler_after);
  std::erase_if(stragglers, [&](const v1::Straggler& straggler) {
    return straggler.rank() >= record->ranks_size() || record->ranks(straggler.rank()).gone();
  });
  for (v1::Straggler& straggler : stragglers) {
    straggler.set_worker(record->ranks(straggler.rank()).worker());
  }
  record->mutable_job()->mutable_stragglers()->Assign(stragglers.begin(), stragglers.end());
  if (stragglers.empty() || record->ending() != v1::ATTEMPT_ENDING_NONE) return false;
  if (!record->job().spec().restart().replace_stragglers()) return false;
  // A host that is avoided already has been given ranks for want of another.
  const v1::WorkerRecord* worker = Worker(stragglers[0].worker());
  if (worker == nullptr || IsAvoided(*worker, now_ - config_.avoid_after_failure)) return false;
  ReplaceStraggler(number, stragglers[0]);
  return true;
}

// The job goes on where placement finds another host for it.
void Transition::ReplaceStraggler(int64_t number, const v1::Straggler& straggler) {
  NoteHostFailure(straggler.worker(), v1::FAILURE_CLASS_HOST, JobName(number));
  BeginEnding(number, v1::ATTEMPT_ENDING_REQUEUE, v1::JOB_REASON_STRAGGLER,
              absl::StrFormat("rank %d on %s needs %.2f times as long as the others: its ranks "
                              "checkpoint and go on elsewhere",
                              straggler.rank(), straggler.worker(), straggler.ratio()));
  Settle(number);
}

void Transition::StopOverdue() {
  const std::set<int64_t> timed = state_.timed();
  for (int64_t number : timed) {
    const v1::JobRecord* known = Job(number);
    if (IsSet(known->stop_deadline()) && FromProto(known->stop_deadline()) <= now_) {
      if (AllKilled(*known)) {
        GiveUpRanks(number);
        continue;
      }
      v1::JobRecord& record = Change(number);
      if (AnySaves(record)) {  // no time for a checkpoint: what it keeps in memory may do
        record.clear_stop_deadline();
        AbortRanks(&record);
        continue;
      }
      *record.mutable_stop_deadline() = ToProto(now_ + config_.lease + config_.kill_wait);
      StopRanks(&record, v1::STOP_KIND_KILL);
    } else if (known->ending() == v1::ATTEMPT_ENDING_NONE && TimeLimitEnd(*known) <= now_) {
      BeginEnding(number, v1::ATTEMPT_ENDING_TIME_LIMIT, v1::JOB_REASON_TIME_LIMIT,
                  "its time limit is up: its ranks checkpoint and leave");
      Settle(number);
    }
  }
}

void Transition::StartAttempt(int64_t number, const std::vector<PlacedRank>& placed) {
  v1::JobRecord& record = Change(number);
  v1::Job* job = record.mutable_job();
  job->set_generation(job->generation() + 1);
  job->set_attempts(job->attempts() + 1);
  Move(JobCause::kStarted, job);
  job->set_reason(v1::JOB_REASON_UNSPECIFIED);
  job->set_reason_detail("");
  job->clear_next_attempt_time();
  if (!IsSet(job->start_time())) *job->mutable_start_time() = ToProto(now_);
  record.set_ending(v1::ATTEMPT_ENDING_NONE);
  record.set_admission(v1::ADMISSION_NONE);
  *record.mutable_attempt_start_time() = ToProto(now_);
  record.set_rank_stopped(false);
  record.set_wanted_ranks(0);
  record.set_start_checkpoint_step(job->latest_checkpoint().empty() ? 0 : record.newest_step());
  record.set_start_checkpoint(job->latest_checkpoint().empty()
                                  ? job->spec().checkpoint().resume_from()
                                  : job->latest_checkpoint());
  record.clear_resize_after();
  const int sizes = record.sizes_size();
  if (sizes > 0 && record.sizes(sizes - 1).ranks() > static_cast<int>(placed.size())) {
    *record.mutable_resize_after() = ToProto(now_ + config_.resize_interval);
  }
  record.clear_ranks();
  job->clear_placements();
  for (size_t i = 0; i < placed.size(); ++i) {
    v1::RankRecord* rank = record.add_ranks();
    rank->set_rank(static_cast<int>(i));
    rank->set_worker(placed[i].worker);
    rank->set_slot(placed[i].slot);
    rank->set_incarnation(Worker(placed[i].worker)->worker().incarnation());
    v1::RankPlacement* placement = job->add_placements();
    placement->set_rank(rank->rank());
    placement->set_worker(rank->worker());
    placement->set_slot(rank->slot());
  }
  for (const v1::RankRecord& rank : record.ranks()) SendStart(record, rank);
}

void Transition::SendStart(const v1::JobRecord& record, const v1::RankRecord& rank) {
  Action action{.worker = rank.worker()};
  v1::StartRank* start = action.message.mutable_start_rank();
  start->set_job(record.job().name());
  start->set_uid(record.job().uid());
  start->set_generation(record.job().generation());
  start->set_rank(rank.rank());
  start->set_world(record.ranks_size());
  start->set_slot(rank.slot());
  *start->mutable_spec() = WithRanks(record.job().spec(), record.ranks_size());
  start->set_checkpoint(record.start_checkpoint());
  start->set_checkpoint_step(record.start_checkpoint_step());
  outcome_.actions.push_back(std::move(action));
}

void Transition::SendStop(const v1::JobRecord& record, const v1::RankRecord& rank) {
  Action action{.worker = rank.worker()};
  v1::StopRank* stop = action.message.mutable_stop_rank();
  stop->set_job(record.job().name());
  stop->set_generation(record.job().generation());
  stop->set_rank(rank.rank());
  stop->set_graceful(rank.stop() == v1::STOP_KIND_GRACEFUL);
  stop->set_abort(rank.stop() == v1::STOP_KIND_ABORT);
  outcome_.actions.push_back(std::move(action));
}

void Transition::SendForget(const std::string& worker, const v1::RankReport& report) {
  Action action{.worker = worker};
  v1::ForgetRank* forget = action.message.mutable_forget_rank();
  forget->set_job(report.job());
  forget->set_generation(report.generation());
  forget->set_rank(report.rank());
  outcome_.actions.push_back(std::move(action));
}

// A report of a rank that is not gone, from the worker it is assigned to.
void Transition::RankReported(int64_t number, int index, const v1::RankReport& report) {
  const v1::RankRecord& known = Job(number)->ranks(index);
  if (!HasEnded(report.state()) && report.state() <= known.state()) return;  // nothing new
  v1::JobRecord& record = Change(number);
  v1::RankRecord* rank = record.mutable_ranks(index);
  rank->set_state(report.state());
  if (index == 0 && report.has_progress()) NoteProgress(report.progress(), &record);
  if (!HasEnded(report.state())) return;
  rank->set_gone(true);
  SendForget(rank->worker(), report);
  if (report.state() == v1::RANK_STATE_STOPPED) {
    record.set_rank_stopped(true);
    BeginEnding(number, v1::ATTEMPT_ENDING_REQUEUE, v1::JOB_REASON_WORKER_LEAVING,
                absl::StrCat("rank ", index, " on ", rank->worker(), " was told to stop"));
  } else if (report.state() == v1::RANK_STATE_FAILED) {
    // A rank that we killed says nothing about why the attempt failed.
    const bool killed = rank->stop() == v1::STOP_KIND_KILL && report.signal() == 9;
    const bool aborted = rank->stop() == v1::STOP_KIND_ABORT && report.peer_lost();
    if (killed || aborted) return;
    v1::Failure failure = FailureOf(report, rank->worker(), now_);
    if (!report.peer_lost()) {
      NoteHostFailure(rank->worker(), failure.class_(), record.job().name());
    }
    const std::string detail =
        absl::StrCat("rank ", index, " on ", rank->worker(), " failed: ", failure.message());
    NoteFailure(&record, std::move(failure), report.peer_lost());
    BeginEnding(number, v1::ATTEMPT_ENDING_FAILED, v1::JOB_REASON_RANK_FAILED, detail);
    // The others cannot reach the common step any more. (A lost peer may have left in good order.)
    if (!report.peer_lost()) AbortRanks(&record);
  }
}

// The rank's process is gone with its worker, or never came to be.
void Transition::RankLost(int64_t number, int index, const std::string& why) {
  v1::JobRecord& record = Change(number);
  v1::RankRecord* rank = record.mutable_ranks(index);
  rank->set_gone(true);
  rank->set_state(v1::RANK_STATE_FAILED);
  NoteHostFailure(rank->worker(), v1::FAILURE_CLASS_HOST, record.job().name());
  const bool unwanted =
      record.ending() != v1::ATTEMPT_ENDING_NONE && record.ending() != v1::ATTEMPT_ENDING_FAILED;
  if (unwanted) return AbortRanks(&record);
  v1::Failure failure;
  failure.set_class_(v1::FAILURE_CLASS_HOST);
  failure.set_rank(index);
  failure.set_worker(rank->worker());
  failure.set_generation(record.job().generation());
  failure.set_message(why);
  *failure.mutable_time() = ToProto(now_);
  NoteFailure(&record, std::move(failure), /*peer_lost=*/false);
  BeginEnding(number, v1::ATTEMPT_ENDING_FAILED, v1::JOB_REASON_WORKER_LOST,
              absl::StrCat("rank ", index, " is lost: ", why));
  AbortRanks(&record);
}

// Processes that SIGKILL has not ended wait in the kernel, for a disk or a driver, nobody knows how
// long. The job goes on without them: they are fenced by their generation, and their slots are not
// free before they have ended. Of a worker that is not connected the lease decides.
void Transition::GiveUpRanks(int64_t number) {
  v1::JobRecord& record = Change(number);
  *record.mutable_stop_deadline() = ToProto(now_ + config_.lease + config_.kill_wait);
  std::set<std::string> workers;
  for (int i = 0; i < record.ranks_size(); ++i) {
    const v1::RankRecord& rank = record.ranks(i);
    const v1::WorkerRecord* worker = Worker(rank.worker());
    if (rank.gone() || worker == nullptr || !IsConnected(worker->worker())) continue;
    v1::RankReport report;
    report.set_job(record.job().name());
    report.set_generation(record.job().generation());
    report.set_rank(i);
    report.set_slot(rank.slot());
    AddStale(rank.worker(), report);
    workers.insert(rank.worker());
    RankLost(number, i,
             absl::StrCat("its process did not end within ",
                          absl::FormatDuration(config_.lease + config_.kill_wait),
                          " of SIGKILL: it waits in the kernel for a disk or a driver; `dmesg` on ",
                          rank.worker(), " may tell which"));
  }
  Settle(number);
  for (const std::string& worker : workers) SettleDrain(worker);
}

void Transition::NoteFailure(v1::JobRecord* record, v1::Failure failure, bool peer_lost) {
  const bool has_one = record->job().has_first_failure() &&
                       record->job().first_failure().generation() == failure.generation();
  if (has_one) {
    const bool known_peer_lost = record->first_failure_peer_lost();
    const bool earlier =
        FromProto(failure.time()) < FromProto(record->job().first_failure().time());
    if (peer_lost && !known_peer_lost) return;
    if (peer_lost == known_peer_lost && !earlier) return;
  }
  record->set_first_failure_peer_lost(peer_lost);
  *record->mutable_job()->mutable_first_failure() = std::move(failure);
}

void Transition::BeginEnding(int64_t number, v1::AttemptEnding ending, v1::JobReason reason,
                             const std::string& detail) {
  v1::JobRecord& record = Change(number);
  if (!Overrides(ending, record.ending())) return;
  const bool graceful = ending != v1::ATTEMPT_ENDING_FAILED;
  record.set_ending(ending);
  v1::Job* job = record.mutable_job();
  Move(CauseOf(ending), job);
  job->set_reason(reason);
  job->set_reason_detail(detail);
  if (!graceful) return AbortRanks(&record);
  const absl::Time deadline = now_ + config_.graceful_stop;
  const bool sooner =
      !IsSet(record.stop_deadline()) || FromProto(record.stop_deadline()) > deadline;
  if (sooner) *record.mutable_stop_deadline() = ToProto(deadline);
  StopRanks(&record, v1::STOP_KIND_GRACEFUL);
}

// The attempt is lost; what its ranks keep in memory may not be.
void Transition::AbortRanks(v1::JobRecord* record) {
  if (AllKilled(*record)) return;  // they have their time to end
  const absl::Time deadline = now_ + AbortTime(*record, config_);
  const bool sooner =
      !IsSet(record->stop_deadline()) || FromProto(record->stop_deadline()) > deadline;
  if (sooner) *record->mutable_stop_deadline() = ToProto(deadline);
  StopRanks(record, v1::STOP_KIND_ABORT);
}

// A rank that was asked for as much already is not asked again.
void Transition::StopRanks(v1::JobRecord* record, v1::StopKind kind) {
  for (v1::RankRecord& rank : *record->mutable_ranks()) {
    if (rank.gone() || Urgency(rank.stop()) >= Urgency(kind)) continue;
    rank.set_stop(kind);
    SendStop(*record, rank);
  }
}

// After any change to the ranks: is the job running, or the attempt over?
void Transition::Settle(int64_t number) {
  const v1::JobRecord* known = Job(number);
  if (known->ranks().empty()) return;
  bool all_gone = true;
  bool all_running = true;
  for (const v1::RankRecord& rank : known->ranks()) {
    all_gone = all_gone && rank.gone();
    all_running = all_running && (rank.state() == v1::RANK_STATE_RUNNING ||
                                  rank.state() == v1::RANK_STATE_SUCCEEDED);
  }
  if (all_gone) return FinishAttempt(number);
  if (all_running && known->job().state() == v1::JOB_STATE_STARTING) {
    Move(JobCause::kAllRunning, Change(number).mutable_job());
  }
}

void Transition::FinishAttempt(int64_t number) {
  v1::JobRecord& record = Change(number);
  v1::Job* job = record.mutable_job();
  const v1::AttemptEnding ending = record.ending();
  bool succeeded = true;
  for (const v1::RankRecord& rank : record.ranks()) {
    succeeded = succeeded && rank.state() == v1::RANK_STATE_SUCCEEDED;
  }
  const v1::Progress& progress = job->progress();
  AddProductive(progress, &record);
  // As far as is known: what comes after may yet be found in memory.
  auto productive = record.productive();
  record.set_productive_before(
      CutProductive(succeeded ? progress.step() : record.newest_step(), &productive));
  job->set_productive_seconds(record.productive_before());
  job->mutable_progress()->set_productive_seconds(0);
  if (IsSet(record.attempt_start_time())) {
    record.set_held_before(record.held_before() +
                           absl::ToDoubleSeconds(now_ - FromProto(record.attempt_start_time())));
  }
  const bool made_room = !record.leaves_for().empty();
  std::set<std::string> workers;
  const bool comes_back =
      ending == v1::ATTEMPT_ENDING_FAILED || ending == v1::ATTEMPT_ENDING_REQUEUE;
  if (comes_back) record.set_wanted_ranks(record.ranks_size());
  for (const v1::RankRecord& rank : record.ranks()) {
    if (comes_back) workers.insert(rank.worker());
  }
  record.mutable_last_workers()->Assign(workers.begin(), workers.end());
  record.clear_ranks();
  job->clear_placements();
  job->clear_stragglers();
  record.clear_stop_deadline();
  record.clear_resize_after();
  record.clear_leaves_for();
  record.set_ending(v1::ATTEMPT_ENDING_NONE);
  outcome_.ended_attempts.push_back(number);
  if (succeeded) {
    EndJob(&record, JobCause::kSucceeded, v1::JOB_REASON_UNSPECIFIED, "");
  } else {
    if (made_room) job->set_preemptions(job->preemptions() + 1);
    FinishEnding(&record, ending);
  }
}

void Transition::FinishEnding(v1::JobRecord* record, v1::AttemptEnding ending) {
  v1::Job* job = record->mutable_job();
  const double limit = job->spec().scheduling().time_limit();
  const bool spent = limit > 0 && record->held_before() >= limit;
  if (ending == v1::ATTEMPT_ENDING_CANCEL) {
    EndJob(record, JobCause::kOver, v1::JOB_REASON_USER, "cancelled");
  } else if (ending == v1::ATTEMPT_ENDING_TIME_LIMIT || spent) {
    EndJob(record, JobCause::kTimeSpent, v1::JOB_REASON_TIME_LIMIT,
           absl::StrCat("it has held its slots for the ", limit,
                        " s of its time limit; resumed, it may go on for as long again"));
  } else if (ending == v1::ATTEMPT_ENDING_SUSPEND) {
    Move(JobCause::kOver, job);
    job->set_reason_detail("suspended: resume it with `milepost job resume`");
  } else if (ending == v1::ATTEMPT_ENDING_PREEMPT) {
    Move(JobCause::kOver, job);
  } else if (ending == v1::ATTEMPT_ENDING_RESIZE) {
    Move(JobCause::kOver, job);
    record->set_admission(v1::ADMISSION_HELD);
  } else if (ending == v1::ATTEMPT_ENDING_REQUEUE ||
             (record->first_failure_peer_lost() && record->rank_stopped())) {
    Move(JobCause::kOver, job);
    if (job->reason() != v1::JOB_REASON_STRAGGLER) {
      job->set_reason(v1::JOB_REASON_WORKER_LEAVING);
    }
    record->set_admission(v1::ADMISSION_HELD);
  } else {
    FinishFailed(record);
  }
}

void Transition::FinishFailed(v1::JobRecord* record) {
  v1::Job* job = record->mutable_job();
  const v1::RestartSpec& restart = job->spec().restart();
  const std::string cause =
      absl::StrCat("rank ", job->first_failure().rank(), " on ", job->first_failure().worker(),
                   ": ", job->first_failure().message());
  job->set_failures(job->failures() + 1);
  if (job->first_failure().class_() == v1::FAILURE_CLASS_USER) {
    return EndJob(record, JobCause::kGivenUp, v1::JOB_REASON_RANK_FAILED, cause);
  }
  if (job->failures() > restart.max_failures()) {
    return EndJob(record, JobCause::kGivenUp, v1::JOB_REASON_BUDGET_EXHAUSTED,
                  absl::StrCat("failed ", job->failures(),
                               " times without progress (restart.max_failures is ",
                               restart.max_failures(), "); last: ", cause));
  }
  *job->mutable_next_attempt_time() = ToProto(now_ + BackoffOf(*record, config_.backoff_cap));
  record->set_admission(v1::ADMISSION_HELD);
  Move(JobCause::kBacksOff, job);
  job->set_reason(v1::JOB_REASON_BACKING_OFF);
  job->set_reason_detail(absl::StrCat("attempt ", job->attempts(), " failed (", cause,
                                      "); failure ", job->failures(), " of ",
                                      restart.max_failures(), " that it may have"));
}

void Transition::EndJob(v1::JobRecord* record, JobCause cause, v1::JobReason reason,
                        const std::string& detail) {
  v1::Job* job = record->mutable_job();
  Move(cause, job);
  job->set_reason(reason);
  job->set_reason_detail(detail);
  job->clear_next_attempt_time();
  record->set_admission(v1::ADMISSION_NONE);
  *job->mutable_end_time() = ToProto(now_);
}

}  // namespace milepost::coordinator
