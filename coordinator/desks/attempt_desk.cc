#include "coordinator/desks/attempt_desk.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/error_details.h"
#include "common/status_macros.h"

namespace milepost::coordinator {
namespace {

// Attempts that are remembered for what their workers still have to say, at least.
constexpr size_t kRememberedAttempts = 16384;

}  // namespace

absl::Status AttemptDesk::CheckGenerationLocked(const std::string& job, int64_t generation) const {
  const v1::JobRecord* record = state_.FindJob(JobNumber(job));
  if (record == nullptr) return NoSuchJob(job);
  if (record->job().generation() == generation && !record->ranks().empty()) return absl::OkStatus();
  return Refusal(v1::ERROR_REASON_GENERATION_OVER, job,
                 absl::StrCat("generation ", generation, " of ", job, " is over (it is ",
                              v1::JobState_Name(record->job().state()).substr(10),
                              " with generation ", record->job().generation(), ")"));
}

absl::Status AttemptDesk::CheckGeneration(const std::string& job, int64_t generation) {
  absl::ReaderMutexLock lock(&mutex_);
  return CheckGenerationLocked(job, generation);
}

absl::Status AttemptDesk::CheckRuns(const std::string& worker, const std::string& job,
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

absl::Status AttemptDesk::WithGeneration(const std::string& job, int64_t generation,
                                         const std::function<absl::Status()>& action) {
  // Between two decisions no other generation can come to be.
  absl::Status status;
  const auto run = [&]() -> std::optional<Event> {
    mutex_.AssertReaderHeld();
    status = CheckGenerationLocked(job, generation);
    if (status.ok()) status = action();
    return std::nullopt;
  };
  MP_RETURN_IF_ERROR(Do(Loop::Entry{.event = run}).status());
  return status;
}

bool AttemptDesk::NeedsCheckpoint(const std::string& worker, const std::string& checkpoint,
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
void AttemptDesk::RememberLocked(int64_t number, const v1::JobRecord& record) {
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

bool AttemptDesk::IsItsLineLocked(const std::string& worker, const v1::LogLine& line) const {
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
