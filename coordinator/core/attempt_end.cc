// How an attempt ends: why, how its ranks are told, and what becomes of the job when they are gone.
#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/philox.h"
#include "common/proto_time.h"
#include "coordinator/core/job_states.h"
#include "coordinator/core/missing_ranks.h"
#include "coordinator/core/productive_steps.h"
#include "coordinator/core/transition.h"

namespace milepost::coordinator {
namespace {

constexpr int64_t kCopiedInASecond = int64_t{1} << 30;
constexpr double kBackoffJitter = 0.25;  // of the pause, that may be cut

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

}  // namespace

// Its ranks have not left in time.
void Transition::KillOverdue(int64_t number) {
  if (AllKilled(*Job(number))) return GiveUpRanks(number);
  v1::JobRecord& record = Change(number);
  if (AnySaves(record)) {  // no time for a checkpoint: what it keeps in memory may do
    record.clear_stop_deadline();
    return AbortRanks(&record);
  }
  *record.mutable_stop_deadline() = ToProto(now_ + config_.lease + config_.kill_wait);
  StopRanks(&record, v1::STOP_KIND_KILL);
}

void Transition::StopOverdue() {
  const std::set<int64_t> timed = state_.timed();
  for (int64_t number : timed) {
    const v1::JobRecord* known = Job(number);
    if (IsSet(known->stop_deadline()) && FromProto(known->stop_deadline()) <= now_) {
      KillOverdue(number);
    } else if (known->ending() == v1::ATTEMPT_ENDING_NONE && TimeLimitEnd(*known) <= now_) {
      BeginEnding(number, v1::ATTEMPT_ENDING_TIME_LIMIT, v1::JOB_REASON_TIME_LIMIT,
                  "its time limit is up: its ranks checkpoint and leave");
      Settle(number);
    }
  }
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

// Where ranks of a script waited for others, the one whose patience ended first says less about it
// than all of them together.
void Transition::ExplainFailure(v1::JobRecord* record) {
  v1::Job* job = record->mutable_job();
  if (job->first_failure().generation() != job->generation()) return;
  std::vector<RankWhere> ranks;
  for (const v1::RankRecord& rank : record->ranks()) {
    ranks.push_back({rank.rank(), rank.worker(), rank.position()});
  }
  v1::Failure* failure = job->mutable_first_failure();
  const std::string missing = MissingRanks(ranks, failure->rank());
  if (missing.empty()) return;
  failure->set_message(
      absl::StrCat(missing, ". Rank ", failure->rank(), " said: ", failure->message()));
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
  if (ending == v1::ATTEMPT_ENDING_FAILED) ExplainFailure(&record);
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
