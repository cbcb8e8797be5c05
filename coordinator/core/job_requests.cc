// What users ask of jobs.
#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/proto_time.h"
#include "coordinator/core/decide.h"
#include "coordinator/core/transition.h"

namespace milepost::coordinator {

void Transition::Submit(const JobSubmitted& event) {
  if (!event.request_id.empty()) {
    int64_t known = state_.FindRequest(event.request_id);
    if (auto now = requests_.find(event.request_id); now != requests_.end()) known = now->second;
    if (known != 0) {
      result_.job = JobName(known);
      return;
    }
  }
  const int64_t number = NextJobNumber();
  absl::Status allowed = CheckScheduling(number, event.spec.scheduling(), event.spec.resources());
  if (!allowed.ok()) return Refuse(std::move(allowed));
  v1::JobRecord& record = outcome_.jobs[number];
  outcome_.durable_jobs.insert(number);
  v1::Job* job = record.mutable_job();
  job->set_name(JobName(number));
  job->set_uid(event.uid);
  *job->mutable_spec() = event.spec;
  if (event.submitted_spec) *job->mutable_submitted_spec() = *event.submitted_spec;
  job->mutable_choices()->Assign(event.choices.begin(), event.choices.end());
  job->set_state(v1::JOB_STATE_QUEUED);
  job->set_reason(v1::JOB_REASON_WAITING_FOR_SLOTS);
  *job->mutable_create_time() = ToProto(now_);
  job->mutable_progress()->set_validation_loss(std::nan(""));
  record.set_request_id(event.request_id);
  record.set_slot_bytes(event.slot_bytes);
  record.set_queue_order(NextQueueOrder());
  if (!event.request_id.empty()) requests_[event.request_id] = number;
  result_.job = job->name();
}

void Transition::Cancel(const std::string& name) {
  const int64_t number = JobNumber(name);
  const v1::JobRecord* known = Job(number);
  if (known == nullptr) {
    return Refuse(absl::NotFoundError(absl::StrCat("there is no job ", name)));
  }
  result_.job = name;
  if (IsTerminal(known->job().state()) || known->ending() == v1::ATTEMPT_ENDING_CANCEL) return;
  v1::JobRecord& record = Change(number);
  record.mutable_job()->set_cancel_requested(true);
  if (record.ranks().empty()) {
    return EndJob(&record, v1::JOB_STATE_CANCELLED, v1::JOB_REASON_USER, "cancelled");
  }
  BeginEnding(number, v1::ATTEMPT_ENDING_CANCEL, v1::JOB_REASON_USER,
              "cancelled: its ranks checkpoint and leave");
  Settle(number);
}

void Transition::Resume(const std::string& name, const std::string& request_id,
                        std::optional<int64_t> new_steps) {
  const int64_t number = JobNumber(name);
  const v1::JobRecord* known = Job(number);
  if (known == nullptr) {
    return Refuse(absl::NotFoundError(absl::StrCat("there is no job ", name)));
  }
  result_.job = name;
  if (!request_id.empty() && known->resume_request_id() == request_id) return;
  const v1::JobState known_state = known->job().state();
  if (known_state == v1::JOB_STATE_SUSPENDED || known_state == v1::JOB_STATE_SUSPENDING) {
    return ResumeSuspended(number);
  }
  if (!IsTerminal(known_state)) {
    return Refuse(absl::FailedPreconditionError(
        absl::StrCat(name, " is ", v1::JobState_Name(known->job().state()).substr(10),
                     "; only a job that is suspended or has ended can be resumed")));
  }
  const int64_t done = std::max(known->newest_step(), known->job().progress().step());
  if (new_steps.has_value() && *new_steps <= done) {
    return Refuse(absl::InvalidArgumentError(absl::StrCat(
        "new_steps: must exceed the ", done, " steps that ", name, " has done, not ", *new_steps)));
  }
  v1::JobRecord& record = Change(number);
  v1::Job* job = record.mutable_job();
  if (new_steps.has_value()) job->mutable_spec()->mutable_train()->set_steps(*new_steps);
  job->set_state(v1::JOB_STATE_QUEUED);
  job->set_reason(v1::JOB_REASON_USER);
  job->set_reason_detail("resumed");
  job->set_failures(0);
  job->set_cancel_requested(false);
  job->clear_end_time();
  job->clear_first_failure();
  job->clear_next_attempt_time();
  record.set_held_before(0);
  record.set_resume_request_id(request_id);
  record.set_queue_order(NextQueueOrder());
}

// At its old place, with its budget and time limit as they were.
void Transition::ResumeSuspended(int64_t number) {
  v1::JobRecord& record = Change(number);
  v1::Job* job = record.mutable_job();
  const bool winds_up = !record.ranks().empty();
  if (winds_up) record.set_ending(v1::ATTEMPT_ENDING_REQUEUE);
  job->set_state(winds_up ? v1::JOB_STATE_RECOVERING : v1::JOB_STATE_QUEUED);
  job->set_reason(v1::JOB_REASON_USER);
  job->set_reason_detail("resumed");
}

void Transition::Suspend(const std::string& name) {
  const int64_t number = JobNumber(name);
  const v1::JobRecord* known = Job(number);
  if (known == nullptr) {
    return Refuse(absl::NotFoundError(absl::StrCat("there is no job ", name)));
  }
  result_.job = name;
  const v1::JobState known_state = known->job().state();
  if (known_state == v1::JOB_STATE_SUSPENDED || known_state == v1::JOB_STATE_SUSPENDING) return;
  if (IsTerminal(known_state) || known_state == v1::JOB_STATE_CANCELLING) {
    return Refuse(absl::FailedPreconditionError(
        absl::StrCat(name, " is ", v1::JobState_Name(known_state).substr(10),
                     "; only a job that waits or runs can be suspended")));
  }
  if (!known->ranks().empty()) {
    BeginEnding(number, v1::ATTEMPT_ENDING_SUSPEND, v1::JOB_REASON_USER,
                "suspended: its ranks checkpoint and leave");
    return Settle(number);
  }
  v1::JobRecord& record = Change(number);
  record.set_admission(v1::ADMISSION_NONE);
  v1::Job* job = record.mutable_job();
  job->clear_next_attempt_time();
  job->set_state(v1::JOB_STATE_SUSPENDED);
  job->set_reason(v1::JOB_REASON_USER);
  job->set_reason_detail("suspended: resume it with `milepost job resume`");
}

void Transition::Update(const JobUpdated& event) {
  const int64_t number = JobNumber(event.job);
  const v1::JobRecord* known = Job(number);
  if (known == nullptr) {
    return Refuse(absl::NotFoundError(absl::StrCat("there is no job ", event.job)));
  }
  const std::string etag = EtagOf(known->scheduling_version());
  if (!event.etag.empty() && event.etag != etag) {
    return Refuse(absl::AbortedError(absl::StrCat(event.job, " was changed by someone else (etag ",
                                                  etag, ", not ", event.etag,
                                                  "): read it again and repeat the update")));
  }
  if (IsTerminal(known->job().state())) {
    return Refuse(absl::FailedPreconditionError(absl::StrCat(
        event.job, " has ended (", v1::JobState_Name(known->job().state()).substr(10), ")")));
  }
  absl::Status allowed = CheckScheduling(number, event.scheduling, known->job().spec().resources());
  if (!allowed.ok()) return Refuse(std::move(allowed));
  result_.job = event.job;
  v1::JobRecord& record = Change(number);
  *record.mutable_job()->mutable_spec()->mutable_scheduling() = event.scheduling;
  record.set_scheduling_version(record.scheduling_version() + 1);
}

bool Transition::DependsOn(int64_t job, int64_t other) const {
  std::set<int64_t> seen;
  std::vector<int64_t> open = {job};
  while (!open.empty()) {
    const int64_t next = open.back();
    open.pop_back();
    if (next == other) return true;
    const v1::JobRecord* record = Job(next);
    if (record == nullptr || !seen.insert(next).second) continue;
    for (const std::string& name : record->job().spec().scheduling().depends_on()) {
      open.push_back(JobNumber(name));
    }
  }
  return false;
}

// What cannot be told from the spec alone.
absl::Status Transition::CheckScheduling(int64_t number, const v1::SchedulingSpec& scheduling,
                                         const v1::ResourceSpec& resources) const {
  const std::string id = scheduling.queue().empty() ? kDefaultQueue : scheduling.queue();
  const v1::QueueRecord* queue = Queue(id);
  if (queue == nullptr && id != kDefaultQueue) {
    return absl::InvalidArgumentError(absl::StrCat("scheduling.queue: there is no queue '", id,
                                                   "': see `milepost queue list`, or make it"));
  }
  for (const std::string& name : scheduling.depends_on()) {
    const int64_t other = JobNumber(name);
    if (Job(other) == nullptr || other == number) {
      return absl::InvalidArgumentError(
          absl::StrCat("scheduling.depends_on: there is no job '", name, "' before this one"));
    }
    if (DependsOn(other, number)) {
      return absl::InvalidArgumentError(absl::StrCat("scheduling.depends_on: ", name,
                                                     " depends on ", JobName(number), " itself"));
    }
  }
  if (queue == nullptr) return absl::OkStatus();
  const int ranks = std::max(1, resources.ranks());
  for (const v1::SlotQuota& quota : queue->queue().quotas()) {
    if (quota.device() != resources.device() || !quota.has_limit() || ranks <= quota.limit()) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "resources.ranks: ", ranks, " slots are more than the ", quota.limit(), " that queue ", id,
        " may ever hold: choose another queue, or raise its limit"));
  }
  return absl::OkStatus();
}

}  // namespace milepost::coordinator
