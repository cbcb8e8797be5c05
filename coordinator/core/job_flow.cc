// What happens to a job's attempt.
#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/proto_time.h"
#include "coordinator/core/decide.h"
#include "coordinator/core/transition.h"

namespace milepost::coordinator {

namespace {

constexpr int kMaxLastLines = 20;
constexpr size_t kMaxMessageBytes = 4096;

bool HasEnded(v1::RankState state) {
  return state == v1::RANK_STATE_SUCCEEDED || state == v1::RANK_STATE_STOPPED ||
         state == v1::RANK_STATE_FAILED;
}

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
  if (message.size() > kMaxMessageBytes) message.resize(kMaxMessageBytes);
  failure.set_message(message);
  const int first = std::max(0, report.last_lines_size() - kMaxLastLines);
  for (int i = first; i < report.last_lines_size(); ++i) {
    failure.add_last_lines(report.last_lines(i).substr(0, kMaxMessageBytes));
  }
  *failure.mutable_time() = IsSet(report.time()) ? report.time() : ToProto(now);
  return failure;
}

// Productive seconds of an attempt that lost its steps after the newest checkpoint.
double SurvivingSeconds(const v1::Progress& progress, int64_t checkpoint_step) {
  const int64_t done = progress.step() - progress.start_step();
  const int64_t kept = std::min(checkpoint_step, progress.step()) - progress.start_step();
  if (done <= 0 || kept <= 0) return 0;
  return progress.productive_seconds() * static_cast<double>(kept) / static_cast<double>(done);
}

v1::JobState StateOf(v1::AttemptEnding ending) {
  switch (ending) {
    case v1::ATTEMPT_ENDING_CANCEL:
    case v1::ATTEMPT_ENDING_TIME_LIMIT:
      return v1::JOB_STATE_CANCELLING;
    case v1::ATTEMPT_ENDING_SUSPEND:
      return v1::JOB_STATE_SUSPENDING;
    case v1::ATTEMPT_ENDING_PREEMPT:
      return v1::JOB_STATE_PREEMPTING;
    default:
      return v1::JOB_STATE_RECOVERING;
  }
}

// CANCEL overrides every ending, SUSPEND those after which the job would go on; else the first one
// stands.
bool Overrides(v1::AttemptEnding ending, v1::AttemptEnding known) {
  if (known == v1::ATTEMPT_ENDING_NONE || ending == v1::ATTEMPT_ENDING_CANCEL) return true;
  return ending == v1::ATTEMPT_ENDING_SUSPEND && known != v1::ATTEMPT_ENDING_CANCEL &&
         known != v1::ATTEMPT_ENDING_TIME_LIMIT;
}

// Progress of the job is rank 0's: it has the gang's means.
void TakeProgress(v1::JobRecord* record, const v1::Progress& progress) {
  v1::Job* job = record->mutable_job();
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

void Transition::Progressed(const std::string& worker, const v1::RankProgress& progress) {
  Renew(worker);
  const int64_t number = JobNumber(progress.job());
  const v1::JobRecord* known = Job(number);
  if (known == nullptr || known->job().generation() != progress.generation()) return;
  if (progress.rank() != 0 || known->ranks().empty() || known->ranks(0).worker() != worker) return;
  TakeProgress(&ChangeSoft(number), progress.progress());
}

void Transition::StopOverdue() {
  const std::set<int64_t> timed = state_.timed();
  for (int64_t number : timed) {
    const v1::JobRecord* known = Job(number);
    if (IsSet(known->stop_deadline()) && FromProto(known->stop_deadline()) <= now_) {
      v1::JobRecord& record = Change(number);
      record.clear_stop_deadline();
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
  job->set_state(v1::JOB_STATE_STARTING);
  job->set_reason(v1::JOB_REASON_UNSPECIFIED);
  job->set_reason_detail("");
  job->clear_next_attempt_time();
  if (!IsSet(job->start_time())) *job->mutable_start_time() = ToProto(now_);
  record.set_ending(v1::ATTEMPT_ENDING_NONE);
  record.set_admission(v1::ADMISSION_NONE);
  *record.mutable_attempt_start_time() = ToProto(now_);
  record.set_rank_stopped(false);
  record.set_start_checkpoint(job->latest_checkpoint().empty()
                                  ? job->spec().checkpoint().resume_from()
                                  : job->latest_checkpoint());
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
  start->set_generation(record.job().generation());
  start->set_rank(rank.rank());
  start->set_world(record.ranks_size());
  start->set_slot(rank.slot());
  *start->mutable_spec() = record.job().spec();
  start->set_checkpoint(record.start_checkpoint());
  outcome_.actions.push_back(std::move(action));
}

void Transition::SendStop(const v1::JobRecord& record, const v1::RankRecord& rank) {
  Action action{.worker = rank.worker()};
  v1::StopRank* stop = action.message.mutable_stop_rank();
  stop->set_job(record.job().name());
  stop->set_generation(record.job().generation());
  stop->set_rank(rank.rank());
  stop->set_graceful(rank.stop() == v1::STOP_KIND_GRACEFUL);
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
  if (index == 0 && report.has_progress()) TakeProgress(&record, report.progress());
  if (!HasEnded(report.state())) return;
  rank->set_gone(true);
  SendForget(rank->worker(), report);
  if (report.state() == v1::RANK_STATE_STOPPED) {
    record.set_rank_stopped(true);
    BeginEnding(number, v1::ATTEMPT_ENDING_REQUEUE, v1::JOB_REASON_WORKER_LEAVING,
                absl::StrCat("rank ", index, " on ", rank->worker(), " was told to stop"));
  } else if (report.state() == v1::RANK_STATE_FAILED) {
    // A rank that we killed says nothing about why the attempt failed.
    const bool ours = rank->stop() == v1::STOP_KIND_KILL && report.signal() == 9;
    if (ours) return;
    v1::Failure failure = FailureOf(report, rank->worker(), now_);
    if (!report.peer_lost()) {
      NoteHostFailure(rank->worker(), failure.class_(), record.job().name());
    }
    const std::string detail =
        absl::StrCat("rank ", index, " on ", rank->worker(), " failed: ", failure.message());
    NoteFailure(&record, std::move(failure), report.peer_lost());
    BeginEnding(number, v1::ATTEMPT_ENDING_FAILED, v1::JOB_REASON_RANK_FAILED, detail);
    // The others cannot reach the common step any more. (A lost peer may have left in good order.)
    if (!report.peer_lost()) StopRanks(&record, v1::STOP_KIND_KILL);
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
  if (unwanted) return StopRanks(&record, v1::STOP_KIND_KILL);
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
  StopRanks(&record, v1::STOP_KIND_KILL);
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
  job->set_state(StateOf(ending));
  job->set_reason(reason);
  job->set_reason_detail(detail);
  if (graceful) *record.mutable_stop_deadline() = ToProto(now_ + config_.graceful_stop);
  StopRanks(&record, graceful ? v1::STOP_KIND_GRACEFUL : v1::STOP_KIND_KILL);
}

// A rank that was asked for as much already is not asked again.
void Transition::StopRanks(v1::JobRecord* record, v1::StopKind kind) {
  for (v1::RankRecord& rank : *record->mutable_ranks()) {
    if (rank.gone() || rank.stop() >= kind) continue;
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
    Change(number).mutable_job()->set_state(v1::JOB_STATE_RUNNING);
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
  const double seconds =
      succeeded ? progress.productive_seconds() : SurvivingSeconds(progress, record.newest_step());
  record.set_productive_before(record.productive_before() + seconds);
  job->set_productive_seconds(record.productive_before());
  job->mutable_progress()->set_productive_seconds(0);
  if (IsSet(record.attempt_start_time())) {
    record.set_held_before(record.held_before() +
                           absl::ToDoubleSeconds(now_ - FromProto(record.attempt_start_time())));
  }
  const bool made_room = !record.leaves_for().empty();
  record.clear_ranks();
  job->clear_placements();
  record.clear_stop_deadline();
  record.clear_leaves_for();
  record.set_ending(v1::ATTEMPT_ENDING_NONE);
  outcome_.ended_attempts.push_back(number);
  if (succeeded) {
    EndJob(&record, v1::JOB_STATE_SUCCEEDED, v1::JOB_REASON_UNSPECIFIED, "");
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
    EndJob(record, v1::JOB_STATE_CANCELLED, v1::JOB_REASON_USER, "cancelled");
  } else if (ending == v1::ATTEMPT_ENDING_SUSPEND) {
    job->set_state(v1::JOB_STATE_SUSPENDED);
    job->set_reason_detail("suspended: resume it with `milepost job resume`");
  } else if (ending == v1::ATTEMPT_ENDING_TIME_LIMIT || spent) {
    EndJob(record, v1::JOB_STATE_FAILED, v1::JOB_REASON_TIME_LIMIT,
           absl::StrCat("it has held its slots for the ", limit,
                        " s of its time limit; resumed, it may go on for as long again"));
  } else if (ending == v1::ATTEMPT_ENDING_PREEMPT) {
    job->set_state(v1::JOB_STATE_QUEUED);
  } else if (ending == v1::ATTEMPT_ENDING_REQUEUE ||
             (record->first_failure_peer_lost() && record->rank_stopped())) {
    job->set_state(v1::JOB_STATE_QUEUED);
    job->set_reason(v1::JOB_REASON_WORKER_LEAVING);
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
    return EndJob(record, v1::JOB_STATE_FAILED, v1::JOB_REASON_RANK_FAILED, cause);
  }
  if (job->failures() > restart.max_failures()) {
    return EndJob(record, v1::JOB_STATE_FAILED, v1::JOB_REASON_BUDGET_EXHAUSTED,
                  absl::StrCat("failed ", job->failures(),
                               " times without progress (restart.max_failures is ",
                               restart.max_failures(), "); last: ", cause));
  }
  const double seconds =
      restart.backoff_seconds() * std::pow(2.0, std::min(job->failures() - 1, 30));
  const absl::Duration delay = std::min(absl::Seconds(seconds), config_.backoff_cap);
  *job->mutable_next_attempt_time() = ToProto(now_ + delay);
  record->set_admission(v1::ADMISSION_HELD);
  job->set_state(v1::JOB_STATE_RECOVERING);
  job->set_reason(v1::JOB_REASON_BACKING_OFF);
  job->set_reason_detail(absl::StrCat("attempt ", job->attempts(), " failed (", cause,
                                      "); failure ", job->failures(), " of ",
                                      restart.max_failures(), " that it may have"));
}

void Transition::EndJob(v1::JobRecord* record, v1::JobState state, v1::JobReason reason,
                        const std::string& detail) {
  v1::Job* job = record->mutable_job();
  job->set_state(state);
  job->set_reason(reason);
  job->set_reason_detail(detail);
  job->clear_next_attempt_time();
  record->set_admission(v1::ADMISSION_NONE);
  *job->mutable_end_time() = ToProto(now_);
}

}  // namespace milepost::coordinator
