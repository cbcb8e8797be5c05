// What the gate asks: whose a job is, and which worker runs what.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/error_details.h"
#include "common/status_macros.h"
#include "coordinator/core/decide.h"
#include "coordinator/rpc/coordinator.h"
#include "coordinator/security/principal.h"

namespace milepost::coordinator {
namespace {

// Attempts that are remembered for what their workers still have to say, at least.
constexpr size_t kRememberedAttempts = 16384;

}  // namespace

std::string ProjectOfJob(const v1::Job& job) {
  return job.project().empty() ? kDefaultProject : job.project();
}

absl::StatusOr<std::string> Coordinator::ProjectOf(const std::string& job) {
  absl::ReaderMutexLock lock(&mutex_);
  const v1::JobRecord* record = state_.FindJob(JobNumber(job));
  if (record == nullptr) return NoSuchJob(job);
  return ProjectOfJob(record->job());
}

absl::Status Coordinator::CheckRuns(const std::string& worker, const std::string& job,
                                    int64_t generation) {
  absl::ReaderMutexLock lock(&mutex_);
  const v1::JobRecord* record = state_.FindJob(JobNumber(job));
  if (record != nullptr && HasRankOn(*record, worker)) {
    return CheckGenerationLocked(job, generation);
  }
  // The same whether there is such a job or not.
  return Refusal(v1::ERROR_REASON_GENERATION_OVER, job,
                 absl::StrCat("generation ", generation, " of ", job, " does not run on ", worker));
}

absl::Status Coordinator::CheckRoomFor(const std::string& project, size_t jobs, size_t bytes) {
  absl::ReaderMutexLock lock(&mutex_);
  const size_t active = state_.active().size();
  if (active + jobs > options_.most_active_jobs) {
    return Refusal(
        v1::ERROR_REASON_TOO_MANY_JOBS, "jobs",
        absl::StrCat("there are ", active, " jobs that have not ended, of at most ",
                     options_.most_active_jobs, ": wait until some have, or cancel them"));
  }
  const size_t most = options_.most_active_jobs / 2;
  if (const size_t own = totals_.ActiveOf(project); own + jobs > most) {
    return Refusal(
        v1::ERROR_REASON_TOO_MANY_JOBS, absl::StrCat("projects/", project),
        absl::StrCat("project ", project, " has ", own, " jobs that have not ended, of at most ",
                     most, " of one project: wait until some have, or cancel them"));
  }
  const size_t most_bytes = Values().most_job_bytes;
  if (totals_.bytes() + bytes <= most_bytes) return absl::OkStatus();
  return Refusal(v1::ERROR_REASON_TOO_MANY_JOBS, "jobs",
                 absl::StrCat("the records of all jobs, also of those that have ended, have ",
                              totals_.bytes(), " bytes, of at most ", most_bytes,
                              ": start the coordinator with a larger --max-job-bytes, or put its "
                              "--data-dir aside and start it on a new one"));
}

bool Coordinator::NeedsCheckpoint(const std::string& worker, const std::string& checkpoint,
                                  const std::string& owner) {
  absl::ReaderMutexLock lock(&mutex_);
  const auto& jobs = state_.WithRanksOn(worker);
  return std::any_of(jobs.begin(), jobs.end(), [&](int64_t number) {
    const v1::JobRecord& record = *state_.FindJob(number);
    if (!HasRankOn(record, worker)) return false;
    return record.job().name() == owner || record.start_checkpoint() == checkpoint ||
           record.job().spec().checkpoint().resume_from() == checkpoint;
  });
}

// Lines come after the report of the rank's end, when the attempt's ranks may be forgotten.
void Coordinator::RememberLocked(int64_t number, const v1::JobRecord& record) {
  if (record.ranks().empty()) return;
  Attempt& attempt = attempts_[number];
  const bool known = attempt.generation == record.job().generation() &&
                     attempt.workers.size() == static_cast<size_t>(record.ranks_size());
  if (known) return;
  if (attempt.generation < record.job().generation()) {
    attempt.last_generation = attempt.generation;
    attempt.last_workers = std::move(attempt.workers);
  }
  attempt.generation = record.job().generation();
  attempt.workers.clear();
  for (const v1::RankRecord& rank : record.ranks()) attempt.workers.push_back(rank.worker());
  if (attempts_.size() <= kRememberedAttempts) return;
  // The oldest jobs that do not run.
  for (auto it = attempts_.begin(); it != attempts_.end();) {
    const v1::JobRecord* job = state_.FindJob(it->first);
    const bool runs = it->first == number || (job != nullptr && !job->ranks().empty());
    if (!runs) {
      attempts_.erase(it);
      return;
    }
    ++it;
  }
}

bool Coordinator::IsItsLineLocked(const std::string& worker, const v1::LogLine& line) const {
  const auto found = attempts_.find(JobNumber(line.job()));
  if (found == attempts_.end()) return false;
  const Attempt& attempt = found->second;
  const bool last = attempt.last_generation == line.generation();
  if (!last && attempt.generation != line.generation()) return false;
  const auto& workers = last ? attempt.last_workers : attempt.workers;
  return line.rank() >= 0 && line.rank() < static_cast<int64_t>(workers.size()) &&
         workers[static_cast<size_t>(line.rank())] == worker;
}

}  // namespace milepost::coordinator
