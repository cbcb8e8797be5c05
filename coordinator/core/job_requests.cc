// What users ask of jobs.
#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/error_details.h"
#include "common/proto_time.h"
#include "common/spec/sizes.h"
#include "common/spec/validate.h"
#include "coordinator/core/decide.h"
#include "coordinator/core/job_states.h"
#include "coordinator/core/transition.h"

namespace milepost::coordinator {

namespace {

// Of a fixed job none: its only size is that of its spec.
void SetSizes(const v1::JobSpec& spec, const std::vector<v1::JobSize>& sizes,
              v1::JobRecord* record) {
  record->mutable_sizes()->Assign(sizes.begin(), sizes.end());
  if (!sizes.empty()) return;
  const std::vector<int> possible = PossibleSizes(spec);
  if (possible.size() == 1) return;
  for (const int ranks : possible) {
    v1::JobSize* size = record->add_sizes();
    size->set_ranks(ranks);
    size->set_slot_bytes(record->slot_bytes());
  }
}

// Or has been admitted to some, which are kept for it.
bool HoldsSlots(const v1::JobRecord& record) {
  return !record.ranks().empty() || record.admission() != v1::ADMISSION_NONE;
}

constexpr int kMostResumeRequests = 16;

absl::Status CheckNewSteps(const v1::JobRecord& record, std::optional<int64_t> new_steps) {
  if (!new_steps.has_value()) return absl::OkStatus();
  const v1::Job& job = record.job();
  if (job.spec().has_script()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "new_steps: ", job.name(), " runs a script, which alone knows how many steps it makes"));
  }
  const int64_t done = std::max(record.newest_step(), job.progress().step());
  if (*new_steps <= done) {
    return absl::InvalidArgumentError(absl::StrCat("new_steps: must exceed the ", done,
                                                   " steps that ", job.name(), " has done, not ",
                                                   *new_steps));
  }
  if (*new_steps > kMostSteps) {
    return absl::InvalidArgumentError(
        absl::StrCat("new_steps: must be at most ", kMostSteps, ", not ", *new_steps));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSameRequest(const v1::JobRecord& record, bool of_array, uint64_t digest) {
  const v1::Job& job = record.job();
  const uint64_t before = record.request_digest();
  if (job.has_array() == of_array && (before == 0 || digest == 0 || before == digest)) {
    return absl::OkStatus();
  }
  const std::string& made = job.has_array() ? job.array().name() : job.name();
  return Refusal(v1::ERROR_REASON_REQUEST_ID_USED, job.name(),
                 absl::StrCat("request_id: another request, that for ", made,
                              ", came with it: take a new one"));
}

bool HasResumed(const v1::JobRecord& record, absl::string_view request_id) {
  const auto& ids = record.resume_request_ids();
  return !request_id.empty() && std::find(ids.begin(), ids.end(), request_id) != ids.end();
}

// 0: none is known; its job may have been deleted in this decision, too.
int64_t Transition::KnownRequest(const std::string& request_id) const {
  if (request_id.empty()) return 0;
  const auto now = requests_.find(request_id);
  const int64_t known = now != requests_.end() ? now->second : state_.FindRequest(request_id);
  return known != 0 && Job(known) == nullptr ? 0 : known;
}

void Transition::Submit(const JobSubmitted& event) {
  if (const int64_t known = KnownRequest(event.request_id); known != 0) {
    absl::Status same = CheckSameRequest(*Job(known), /*of_array=*/false, event.request_digest);
    if (!same.ok()) return Refuse(std::move(same));
    result_.job = JobName(known);
    return;
  }
  absl::Status allowed =
      CheckScheduling(NextJobNumber(), event.spec.scheduling(), event.spec.resources());
  if (!allowed.ok()) return Refuse(std::move(allowed));
  v1::JobRecord& record = Add(event);
  record.set_request_id(event.request_id);
  record.set_request_digest(event.request_digest);
  result_.job = record.job().name();
  if (!event.request_id.empty()) requests_[event.request_id] = JobNumber(result_.job);
}

void Transition::SubmitArray(const JobArraySubmitted& event) {
  if (const int64_t known = KnownRequest(event.request_id); known != 0) {
    absl::Status same = CheckSameRequest(*Job(known), /*of_array=*/true, event.request_digest);
    if (!same.ok()) return Refuse(std::move(same));
    result_.job = JobName(known);
    return;
  }
  const int64_t first = NextJobNumber();
  for (size_t i = 0; i < event.jobs.size(); ++i) {
    const v1::JobSpec& spec = event.jobs[i].spec;
    absl::Status allowed = CheckScheduling(first, spec.scheduling(), spec.resources());
    if (allowed.ok()) continue;
    return Refuse(absl::Status(
        allowed.code(), absl::StrCat("elements[", i, "]: ", std::string(allowed.message()))));
  }
  for (const JobSubmitted& job : event.jobs) {
    v1::JobRecord& record = Add(job);
    v1::ArrayMembership* array = record.mutable_job()->mutable_array();
    array->set_name(ArrayName(first));
    array->set_size(static_cast<int>(event.jobs.size()));
    if (JobNumber(record.job().name()) != first) continue;
    record.set_request_id(event.request_id);
    record.set_request_digest(event.request_digest);
  }
  result_.job = JobName(first);
  if (!event.request_id.empty()) requests_[event.request_id] = first;
}

// A job that is known to be allowed.
v1::JobRecord& Transition::Add(const JobSubmitted& event) {
  const int64_t number = NextJobNumber();
  v1::JobRecord& record = outcome_.jobs[number];
  touched_.insert(number);
  outcome_.durable_jobs.insert(number);
  v1::Job* job = record.mutable_job();
  job->set_name(JobName(number));
  job->set_uid(event.uid);
  job->set_project(event.project);
  job->mutable_labels()->insert(event.labels.begin(), event.labels.end());
  if (event.forked_from) *job->mutable_forked_from() = *event.forked_from;
  if (event.array) *job->mutable_array() = *event.array;
  *job->mutable_spec() = event.spec;
  if (event.submitted_spec) *job->mutable_submitted_spec() = *event.submitted_spec;
  job->mutable_choices()->Assign(event.choices.begin(), event.choices.end());
  Move(JobCause::kSubmitted, job);
  job->set_reason(v1::JOB_REASON_WAITING_FOR_SLOTS);
  *job->mutable_create_time() = ToProto(now_);
  job->mutable_progress()->set_validation_loss(std::nan(""));
  record.set_slot_bytes(event.slot_bytes);
  SetSizes(event.spec, event.sizes, &record);
  record.set_queue_order(NextQueueOrder());
  return record;
}

void Transition::CancelArray(const std::string& array) {
  const int64_t first = ArrayNumber(array);
  const v1::JobRecord* known = Job(first);
  if (known == nullptr || known->job().array().name() != array) known = state_.FindOfArray(array);
  if (known == nullptr) {
    return Refuse(Refusal(v1::ERROR_REASON_ARRAY_NOT_FOUND, array,
                          absl::StrCat("there is no array ", array)));
  }
  const int64_t end = first + known->job().array().size();
  for (int64_t number = first; number < end; ++number) {
    if (Job(number) != nullptr) Cancel(JobName(number));
  }
  result_.job = JobName(first);
}

// By a job that has not ended, which is to begin with a checkpoint of it or waits for its success.
absl::Status Transition::CheckNotNeeded(const JobDeleted& event) const {
  std::set<int64_t> others = state_.active();
  for (const auto& [number, record] : outcome_.jobs) others.insert(number);
  for (const int64_t number : others) {
    const v1::JobRecord* other = Job(number);
    if (other == nullptr || IsTerminal(other->job().state())) continue;
    const auto& awaited = other->job().spec().scheduling().depends_on();
    const std::string begins_with = AwaitedCheckpoint(*other);
    const bool waits = std::find(awaited.begin(), awaited.end(), event.job) != awaited.end();
    if (!waits && !event.checkpoints.contains(begins_with)) continue;
    return Refusal(v1::ERROR_REASON_JOB_NEEDED, event.job,
                   absl::StrCat(event.job, " is needed: ", JobName(number),
                                waits ? " depends on it" : " is to begin with its " + begins_with,
                                ": let that one end, or cancel it, first"));
  }
  return absl::OkStatus();
}

void Transition::Delete(const JobDeleted& event) {
  const int64_t number = JobNumber(event.job);
  const v1::JobRecord* known = Job(number);
  if (known == nullptr) return Refuse(NoSuchJob(event.job));
  // An end of this very decision is not stored yet, nor what is to be sent of it.
  const v1::JobRecord* stored = state_.FindJob(number);
  const bool over = stored != nullptr && IsTerminal(stored->job().state());
  if (!over || !IsTerminal(known->job().state())) {
    return Refuse(
        Refusal(v1::ERROR_REASON_JOB_NOT_OVER, event.job,
                absl::StrCat(event.job, " is ", v1::JobState_Name(known->job().state()).substr(10),
                             ": only a job that has ended can be deleted; cancel it first")));
  }
  if (absl::Status free = CheckNotNeeded(event); !free.ok()) return Refuse(std::move(free));
  result_.job = event.job;
  Forget(number);
}

// Its number is not given again.
void Transition::Forget(int64_t number) {
  outcome_.last_job = std::max(outcome_.last_job, NextJobNumber() - 1);
  outcome_.jobs.erase(number);
  outcome_.durable_jobs.erase(number);
  touched_.erase(number);
  outcome_.deleted_jobs.insert(number);
}

void Transition::Cancel(const std::string& name) {
  const int64_t number = JobNumber(name);
  const v1::JobRecord* known = Job(number);
  if (known == nullptr) {
    return Refuse(NoSuchJob(name));
  }
  result_.job = name;
  if (IsTerminal(known->job().state()) || known->ending() == v1::ATTEMPT_ENDING_CANCEL) return;
  v1::JobRecord& record = Change(number);
  record.mutable_job()->set_cancel_requested(true);
  if (record.ranks().empty()) {
    return EndJob(&record, JobCause::kCancelled, v1::JOB_REASON_USER, "cancelled");
  }
  BeginEnding(number, v1::ATTEMPT_ENDING_CANCEL, v1::JOB_REASON_USER,
              "cancelled: its ranks checkpoint and leave");
  Settle(number);
}

// Without those jobs that are deleted, where the job has run: then they had succeeded.
v1::SchedulingSpec Transition::LastingDependencies(const v1::Job& job) const {
  v1::SchedulingSpec scheduling = job.spec().scheduling();
  if (job.attempts() == 0) return scheduling;
  auto* names = scheduling.mutable_depends_on();
  names->erase(
      std::remove_if(names->begin(), names->end(),
                     [&](const std::string& name) { return Job(JobNumber(name)) == nullptr; }),
      names->end());
  return scheduling;
}

void Transition::Resume(const std::string& name, const std::string& request_id,
                        std::optional<int64_t> new_steps) {
  const int64_t number = JobNumber(name);
  const v1::JobRecord* known = Job(number);
  if (known == nullptr) {
    return Refuse(NoSuchJob(name));
  }
  result_.job = name;
  if (HasResumed(*known, request_id)) return;
  const v1::JobState known_state = known->job().state();
  const bool suspended =
      known_state == v1::JOB_STATE_SUSPENDED || known_state == v1::JOB_STATE_SUSPENDING;
  if (!suspended && !IsTerminal(known_state)) {
    return Refuse(
        Refusal(v1::ERROR_REASON_JOB_NOT_RESUMABLE, name,
                absl::StrCat(name, " is ", v1::JobState_Name(known_state).substr(10),
                             "; only a job that is suspended or has ended can be resumed")));
  }
  absl::Status allowed = CheckNewSteps(*known, new_steps);
  if (!allowed.ok()) return Refuse(std::move(allowed));
  const v1::SchedulingSpec scheduling = LastingDependencies(known->job());
  allowed = CheckScheduling(number, scheduling, known->job().spec().resources());
  if (!allowed.ok()) return Refuse(std::move(allowed));
  v1::JobRecord& record = Change(number);
  *record.mutable_job()->mutable_spec()->mutable_scheduling() = scheduling;
  if (!request_id.empty()) {
    auto* ids = record.mutable_resume_request_ids();
    if (ids->size() == kMostResumeRequests) ids->DeleteSubrange(0, 1);
    ids->Add(std::string(request_id));
  }
  v1::Job* job = record.mutable_job();
  if (new_steps.has_value()) job->mutable_spec()->mutable_train()->set_steps(*new_steps);
  if (suspended) return ResumeSuspended(&record);
  Move(JobCause::kResumed, job);
  job->set_reason(v1::JOB_REASON_USER);
  job->set_reason_detail("resumed");
  job->set_failures(0);
  job->set_cancel_requested(false);
  job->clear_end_time();
  job->clear_first_failure();
  job->clear_next_attempt_time();
  record.set_held_before(0);
  record.set_queue_order(NextQueueOrder());
}

// At its old place, with its budget and time limit as they were. While its ranks still leave it
// comes back like one that made room: without a claim to the slots that it gives up.
void Transition::ResumeSuspended(v1::JobRecord* record) {
  v1::Job* job = record->mutable_job();
  if (!record->ranks().empty()) record->set_ending(v1::ATTEMPT_ENDING_PREEMPT);
  Move(JobCause::kResumed, job);
  job->set_reason(v1::JOB_REASON_USER);
  job->set_reason_detail("resumed");
}

void Transition::Suspend(const std::string& name) {
  const int64_t number = JobNumber(name);
  const v1::JobRecord* known = Job(number);
  if (known == nullptr) {
    return Refuse(NoSuchJob(name));
  }
  result_.job = name;
  const v1::JobState known_state = known->job().state();
  if (known_state == v1::JOB_STATE_SUSPENDED || known_state == v1::JOB_STATE_SUSPENDING) return;
  if (IsTerminal(known_state) || known_state == v1::JOB_STATE_CANCELLING) {
    return Refuse(Refusal(v1::ERROR_REASON_JOB_TERMINAL, name,
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
  Move(JobCause::kSuspended, job);
  job->set_reason(v1::JOB_REASON_USER);
  job->set_reason_detail("suspended: resume it with `milepost job resume`");
}

absl::Status Transition::CheckUpdate(const JobUpdated& event, const v1::JobRecord& known) const {
  const int64_t number = JobNumber(event.job);
  const v1::ResourceSpec& resources =
      event.bounds ? event.bounds->resources : known.job().spec().resources();
  absl::Status allowed = CheckScheduling(number, event.scheduling, resources);
  if (allowed.ok() && DependsOn(event.scheduling, number)) {
    allowed = absl::InvalidArgumentError(
        absl::StrCat("scheduling.depends_on: one of these jobs depends on ", event.job, " itself"));
  }
  if (allowed.ok()) allowed = CheckMove(known, event.scheduling.queue());
  if (allowed.ok()) allowed = CheckTimeLimit(event, known);
  return allowed;
}

absl::Status Transition::CheckTimeLimit(const JobUpdated& event, const v1::JobRecord& known) const {
  const double limit = event.scheduling.time_limit();
  const double before = known.job().spec().scheduling().time_limit();
  // It would be stopped as soon as it starts. One that runs may be ended so.
  if (limit > 0 && known.ranks().empty() && limit <= known.held_before()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("scheduling.time_limit: %s has held its slots for %.0f s already, which is "
                        "no less: give it more, or cancel it",
                        event.job, known.held_before()));
  }
  const bool longer = before > 0 && (limit <= 0 || limit > before);
  if (!longer || event.by_admin || !HoldsSlots(known)) return absl::OkStatus();
  return Refusal(
      v1::ERROR_REASON_PERMISSION_DENIED, event.job,
      absl::StrFormat("scheduling.time_limit: %s holds slots, which others have been promised for "
                      "when its %.0f s are up: only an admin of its project may raise or remove "
                      "its limit now; suspend the job first, or let it end and resume it",
                      event.job, before));
}

void Transition::Update(const JobUpdated& event) {
  const int64_t number = JobNumber(event.job);
  const v1::JobRecord* known = Job(number);
  if (known == nullptr) {
    return Refuse(NoSuchJob(event.job));
  }
  if (!event.etag.empty() && event.etag != EtagOf(known->scheduling_version())) {
    return Refuse(EtagMismatch(event.job, event.etag, known->scheduling_version()));
  }
  // What stays as it is may: the queue of a job that has ended can be gone.
  const bool same = !event.bounds && event.scheduling.SerializeAsString() ==
                                         known->job().spec().scheduling().SerializeAsString();
  absl::Status allowed = same ? absl::OkStatus() : CheckUpdate(event, *known);
  if (!allowed.ok()) return Refuse(std::move(allowed));
  result_.job = event.job;
  v1::JobRecord& record = Change(number);
  v1::Job* job = record.mutable_job();
  *job->mutable_spec()->mutable_scheduling() = event.scheduling;
  if (event.bounds) {
    *job->mutable_spec()->mutable_resources() = event.bounds->resources;
    SetSizes(job->spec(), event.bounds->sizes, &record);
  }
  if (event.labels) {
    job->clear_labels();
    job->mutable_labels()->insert(event.labels->begin(), event.labels->end());
  }
  record.set_scheduling_version(record.scheduling_version() + 1);
}

// Of jobs that have not ended: an end is not waited for any more.
bool Transition::DependsOn(const v1::SchedulingSpec& scheduling, int64_t other) const {
  std::set<int64_t> seen;
  std::vector<int64_t> open;
  const auto add = [&](const v1::SchedulingSpec& one) {
    for (const std::string& name : one.depends_on()) open.push_back(JobNumber(name));
  };
  add(scheduling);
  while (!open.empty()) {
    const int64_t next = open.back();
    open.pop_back();
    if (next == other) return true;
    const v1::JobRecord* record = Job(next);
    if (record == nullptr || IsTerminal(record->job().state()) || !seen.insert(next).second)
      continue;
    add(record->job().spec().scheduling());
  }
  return false;
}

// By the jobs of `queue`.
int Transition::SlotsHeldIn(const std::string& queue, v1::DeviceKind device) const {
  int held = 0;
  for (const int64_t number : JobsWithRanks()) {
    const v1::JobRecord& record = *Job(number);
    const v1::JobSpec& spec = record.job().spec();
    const bool counts = spec.scheduling().queue() == queue && spec.resources().device() == device;
    if (counts) held += record.ranks_size();
  }
  return held;
}

// A job that holds slots takes them along.
absl::Status Transition::CheckMove(const v1::JobRecord& record, const std::string& queue) const {
  const v1::JobSpec& spec = record.job().spec();
  const v1::QueueRecord* to = Queue(queue);
  if (!HoldsSlots(record) || to == nullptr || spec.scheduling().queue() == queue)
    return absl::OkStatus();
  const v1::DeviceKind device = spec.resources().device();
  const int used = std::max(record.ranks_size(), LeastRanksOf(record)) + SlotsHeldIn(queue, device);
  for (const v1::SlotQuota& quota : to->queue().quotas()) {
    if (quota.device() != device || !quota.has_limit() || used <= quota.limit()) continue;
    return Refusal(v1::ERROR_REASON_QUEUE_LIMIT_EXCEEDED, QueueName(queue),
                   absl::StrCat(record.job().name(), " holds slots, and queue ", queue,
                                " would hold ", used, " of the ", quota.limit(),
                                " that it may have: suspend the job first, or raise the limit"));
  }
  return absl::OkStatus();
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
  }
  if (queue == nullptr) return absl::OkStatus();
  const int ranks = LeastRanks(resources);
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
