// What is read of jobs, and what is kept beside their records.
#include "coordinator/desks/job_desk.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/error_details.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "coordinator/desks/paging.h"
#include "coordinator/metrics/activity.h"
#include "coordinator/store/store.h"

namespace milepost::coordinator {
namespace {

// By one List call, so that it does not hold up decisions for long.
constexpr int kMostLookedAt = 20'000;

}  // namespace

JobDesk::JobDesk(const DeskTools& tools, Activity* activity, CheckpointDesk* checkpoints,
                 FilesDesk* files)
    : Desk(tools),
      activity_(activity),
      checkpoints_(checkpoints),
      files_(files),
      curves_(&tools.store->curves()) {}

JobDesk::~JobDesk() = default;

absl::StatusOr<v1::Job> JobDesk::FindLocked(const std::string& name) {
  const v1::JobRecord* record = state_.FindJob(JobNumber(name));
  if (record == nullptr) return NoSuchJob(name);
  return Describe(state_, *record);
}

// Of all that Describe tells.
uint64_t JobDesk::VersionLocked(int64_t number) const {
  const v1::JobRecord* record = state_.FindJob(number);
  const bool waits = record != nullptr && FindWaiting(*state_.queue_view(), number,
                                                      record->job().spec().resources().device());
  const auto version = versions_.find(number);
  return (version == versions_.end() ? 0 : version->second) << 32 | (waits ? view_version_ : 0);
}

absl::StatusOr<v1::Job> JobDesk::Get(const std::string& name) {
  absl::ReaderMutexLock lock(&mutex_);
  const v1::JobRecord* record = state_.FindJob(JobNumber(name));
  if (record == nullptr) return FindLocked(name);
  return DescribeInFull(state_, *record);
}

JobDesk::JobPage JobDesk::List(int64_t before, int limit,
                               const std::function<bool(const v1::Job&)>& wanted,
                               const google::protobuf::FieldMask& fields) {
  absl::ReaderMutexLock lock(&mutex_);
  JobPage page;
  PageRoom room(limit);
  int looked_at = 0;
  const auto end = before == 0 ? state_.jobs().end() : state_.jobs().lower_bound(before);
  for (auto it = std::make_reverse_iterator(end); it != state_.jobs().rend(); ++it) {
    if (looked_at++ < kMostLookedAt) {
      if (wanted != nullptr && !wanted(it->second.job())) continue;
      v1::Job job = Describe(state_, it->second, fields);
      if (room.Take(job)) {
        page.jobs.push_back(std::move(job));
        continue;
      }
    }
    page.next_before = it->first + 1;
    break;
  }
  return page;
}

absl::StatusOr<JobDesk::Snapshot> JobDesk::Wait(const std::string& name, uint64_t seen,
                                                absl::Duration timeout) {
  const int64_t number = JobNumber(name);
  const absl::Time deadline = SteadyNow() + timeout;
  absl::ReaderMutexLock lock(&mutex_);
  JobWaits::Waiter waiter(&waits_, number);
  while (!stopping_ && state_.FindJob(number) != nullptr && VersionLocked(number) == seen) {
    if (waiter.Wait(&mutex_, deadline - SteadyNow())) break;
  }
  if (stopping_) return Stopping();
  if (state_.FindJob(number) != nullptr && VersionLocked(number) == seen) return Snapshot{{}, seen};
  MP_ASSIGN_OR_RETURN(v1::Job job, FindLocked(name));
  return Snapshot{std::move(job), VersionLocked(number)};
}

absl::StatusOr<v1::JobCurves> JobDesk::GetCurves(const std::string& name, int max_points) {
  if (max_points < 0) return absl::InvalidArgumentError("max_points: must be at least 0");
  const int64_t number = JobNumber(name);
  {
    absl::ReaderMutexLock lock(&mutex_);
    if (state_.FindJob(number) == nullptr) return NoSuchJob(name);
  }
  return curves_.Get(number, static_cast<size_t>(max_points));
}

void JobDesk::WaitLogs(const std::string& name, absl::Duration timeout) {
  absl::ReaderMutexLock lock(&mutex_);
  JobWaits::Waiter waiter(&waits_, JobNumber(name));
  if (!stopping_) waiter.Wait(&mutex_, timeout);
}

std::string JobDesk::AnyJobOfArray(const std::string& array) {
  absl::ReaderMutexLock lock(&mutex_);
  const v1::JobRecord* record = state_.FindOfArray(array);
  if (record != nullptr) return record->job().name();
  const int64_t number = ArrayNumber(array);
  return number == 0 ? array : JobName(number);
}

absl::StatusOr<std::string> JobDesk::ProjectOf(const std::string& job) {
  absl::ReaderMutexLock lock(&mutex_);
  const v1::JobRecord* record = state_.FindJob(JobNumber(job));
  if (record == nullptr) return NoSuchJob(job);
  return ProjectOfJob(record->job());
}

absl::Status JobDesk::CheckRoomFor(const std::string& project, size_t jobs, size_t bytes) {
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

// ---- what decisions change ----

void JobDesk::LoadLocked() {
  for (const auto& [number, record] : state_.jobs()) {
    versions_[number] = 1;
    totals_.Stored(number, record);
  }
}

void JobDesk::LandingLocked(const State& before, Outcome* outcome) {
  for (const int64_t number : outcome->durable_jobs) {
    const v1::JobRecord& record = outcome->jobs.at(number);
    activity_->JobChanged(before.FindJob(number), record);
    totals_.Stored(number, record);
  }
  for (const int64_t number : outcome->deleted_jobs) {
    totals_.Deleted(number);
    versions_.erase(number);
  }
  curves_.Take(std::move(outcome->reports), outcome->deleted_jobs);
}

void JobDesk::ChangedLocked(const Outcome& outcome) {
  for (const auto& [number, record] : outcome.jobs) {
    ++versions_[number];
    waits_.Wake(number);
  }
  for (const int64_t number : outcome.deleted_jobs) waits_.Wake(number);
  if (outcome.view != nullptr) {  // who waits, and why
    ++view_version_;
    waits_.WakeAll();
  }
}

}  // namespace milepost::coordinator
