// What users change of jobs that are there.
#include <google/protobuf/util/field_mask_util.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/error_details.h"
#include "common/spec/labels.h"
#include "common/spec/scheduling.h"
#include "common/status_macros.h"
#include "coordinator/desks/checkpoint_desk.h"
#include "coordinator/desks/job_desk.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/store.h"

namespace milepost::coordinator {
namespace {

using google::protobuf::util::FieldMaskUtil;

constexpr int kMostUpdateTries = 100;  // one fails only when another change succeeds

absl::Status CheckScheduling(const v1::SchedulingSpec& scheduling) {
  const std::vector<FieldViolation> violations = milepost::CheckScheduling(scheduling);
  if (violations.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(violations[0].field, ": ", violations[0].message));
}

bool ChangesBounds(const v1::UpdateJobRequest& request) {
  return std::any_of(
      request.update_mask().paths().begin(), request.update_mask().paths().end(),
      [](const std::string& path) { return absl::StartsWith(path, "spec.resources."); });
}

// Fields that may be changed, under what has them.
absl::Status CheckMask(const google::protobuf::FieldMask& mask) {
  if (mask.paths().empty()) {
    return absl::InvalidArgumentError("update_mask: names no field, so nothing would change");
  }
  for (const std::string& path : mask.paths()) {
    absl::string_view field = path;
    const bool scheduling = absl::ConsumePrefix(&field, "spec.scheduling.") &&
                            v1::SchedulingSpec::descriptor()->FindFieldByName(std::string(field));
    const bool others = path == "labels" || path == "spec.resources.min_ranks" ||
                        path == "spec.resources.max_ranks";
    if (scheduling || others) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "update_mask: '", path, "' cannot be changed; what can are labels, spec.scheduling's ",
        "queue, priority, time_limit and depends_on, and spec.resources' min_ranks and max_ranks"));
  }
  return absl::OkStatus();
}

// The jobs of an array, and how many of them are still to end.
v1::CancelJobArrayResponse CountToCancel(const State& state, const std::string& array) {
  v1::CancelJobArrayResponse count;
  const int64_t first = ArrayNumber(array);
  const v1::JobRecord* record = state.FindOfArray(array);
  const int size = record == nullptr ? 0 : record->job().array().size();
  for (int64_t number = first; number < first + size; ++number) {
    const v1::JobRecord* job = state.FindJob(number);
    if (job == nullptr) continue;  // deleted
    count.set_jobs(count.jobs() + 1);
    const bool ends = IsTerminal(job->job().state()) || job->ending() == v1::ATTEMPT_ENDING_CANCEL;
    if (!ends) count.set_cancelled(count.cancelled() + 1);
  }
  return count;
}

}  // namespace

absl::StatusOr<v1::Job> JobDesk::Cancel(const std::string& name) {
  MP_RETURN_IF_ERROR(Do(JobCancelled{name}).status());
  return Get(name);
}

absl::StatusOr<v1::CancelJobArrayResponse> JobDesk::CancelArray(const std::string& array) {
  v1::CancelJobArrayResponse response;
  const auto count = [&]() -> std::optional<Event> {
    mutex_.AssertReaderHeld();
    response = CountToCancel(state_, array);
    return JobArrayCancelled{array};
  };
  MP_RETURN_IF_ERROR(Do(Loop::Entry{.event = count}).status());
  return response;
}

absl::StatusOr<v1::Job> JobDesk::Resume(const v1::ResumeJobRequest& request) {
  if (request.request_id().size() > kMaxRequestIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("request_id: at most ", kMaxRequestIdBytes, " bytes"));
  }
  JobResumed event{.job = request.name(), .request_id = request.request_id()};
  if (request.has_new_steps()) event.new_steps = request.new_steps();
  MP_RETURN_IF_ERROR(checkpoints_->UpdateNewest(request.name()));
  MP_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> kept,
                      checkpoints_->KeepForResuming(request.name(), request.request_id()));
  MP_RETURN_IF_ERROR(Do(std::move(event)).status());
  return Get(request.name());
}

absl::StatusOr<v1::Job> JobDesk::Suspend(const std::string& name) {
  MP_RETURN_IF_ERROR(Do(JobSuspended{name}).status());
  return Get(name);
}

// ---- updating ----

absl::StatusOr<RankBounds> JobDesk::AdmitBounds(const v1::Job& job,
                                                const v1::UpdateJobRequest& request,
                                                const Planner& planner) {
  google::protobuf::FieldMask mask;
  for (absl::string_view path : request.update_mask().paths()) {
    if (absl::ConsumePrefix(&path, "spec.resources.")) mask.add_paths(std::string(path));
  }
  JobSubmitted planned = {.spec = job.spec()};
  v1::ResourceSpec* resources = planned.spec.mutable_resources();
  // A bound that the mask names and the request does not have is taken away.
  for (const std::string& path : mask.paths()) {
    path == "min_ranks" ? resources->clear_min_ranks() : resources->clear_max_ranks();
  }
  FieldMaskUtil::MergeMessageTo(request.job().spec().resources(), mask,
                                FieldMaskUtil::MergeOptions(), resources);
  // It has been looked at when the job was submitted, and may be gone.
  planned.spec.mutable_checkpoint()->clear_resume_from();
  MP_RETURN_IF_ERROR(AdmitSpec({}, planner, &planned));
  return RankBounds{planned.spec.resources(), std::move(planned.sizes)};
}

absl::StatusOr<JobUpdated> JobDesk::UpdateOf(const v1::UpdateJobRequest& request,
                                             const Planner& planner) {
  MP_RETURN_IF_ERROR(CheckMask(request.update_mask()));
  MP_ASSIGN_OR_RETURN(v1::Job job, Get(request.job().name()));
  // What was read is what is changed: another change in between is noticed.
  const std::string etag = request.job().etag().empty() ? job.etag() : request.job().etag();
  JobUpdated event = {job.name(), etag, job.spec().scheduling()};
  if (event.scheduling.queue().empty()) event.scheduling.set_queue(kDefaultQueue);
  google::protobuf::FieldMask mask;
  for (absl::string_view path : request.update_mask().paths()) {
    if (absl::ConsumePrefix(&path, "spec.scheduling.")) mask.add_paths(std::string(path));
    if (path != "labels") continue;
    MP_RETURN_IF_ERROR(CheckLabels(request.job().labels()));
    event.labels.emplace(request.job().labels().begin(), request.job().labels().end());
  }
  if (!mask.paths().empty()) {
    FieldMaskUtil::MergeOptions options;
    options.set_replace_repeated_fields(true);
    FieldMaskUtil::MergeMessageTo(request.job().spec().scheduling(), mask, options,
                                  &event.scheduling);
  }
  MP_RETURN_IF_ERROR(CheckScheduling(event.scheduling));
  if (ChangesBounds(request)) {
    MP_ASSIGN_OR_RETURN(event.bounds, AdmitBounds(job, request, planner));
  }
  return event;
}

absl::StatusOr<v1::Job> JobDesk::Update(const v1::UpdateJobRequest& request, bool by_admin,
                                        const Planner& planner) {
  const std::string& name = request.job().name();
  if (!request.validate_only()) {
    absl::Status status;
    // Who names no etag means the job as it is: read it again when it has changed meanwhile.
    for (int tries = 0; tries < kMostUpdateTries; ++tries) {
      MP_ASSIGN_OR_RETURN(JobUpdated event, UpdateOf(request, planner));
      event.by_admin = by_admin;
      status = Do(std::move(event)).status();
      if (status.ok()) return Get(name);
      if (!absl::IsAborted(status) || !request.job().etag().empty()) break;
    }
    return status;
  }
  MP_ASSIGN_OR_RETURN(JobUpdated event, UpdateOf(request, planner));
  event.by_admin = by_admin;
  absl::ReaderMutexLock lock(&mutex_);
  const Outcome outcome = Decide(state_, event, clock_->Now(), Values().config);
  MP_RETURN_IF_ERROR(outcome.status);
  return Describe(state_, outcome.jobs.at(JobNumber(name)));
}

// ---- deleting ----

absl::StatusOr<v1::DeleteJobResponse> JobDesk::Delete(const std::string& name) {
  absl::StatusOr<std::vector<v1::Checkpoint>> claimed = std::vector<v1::Checkpoint>();
  absl::Status refused;
  Loop::Entry entry;
  // Claimed are only the checkpoints of a job that may go: those of others may be read at any time.
  // What is refused here stays so, though events before it in the batch may let it go by then:
  // nobody would have claimed its checkpoints.
  entry.event = [&]() -> std::optional<Event> {
    mutex_.AssertReaderHeld();
    JobDeleted event = {.job = name};
    for (const bool in_bin : {false, true}) {
      for (const v1::Checkpoint& checkpoint : store_->checkpoints().List(name, in_bin)) {
        event.checkpoints.insert(checkpoint.name());
      }
    }
    refused = Decide(state_, event, clock_->Now(), Values().config).status;
    if (!refused.ok()) return std::nullopt;
    claimed = store_->checkpoints().ClaimJob(name);
    return claimed.ok() ? std::optional<Event>(event) : std::nullopt;
  };
  const absl::Status deleted = Do(std::move(entry)).status();
  if (claimed.ok() && !deleted.ok() && !claimed->empty()) store_->checkpoints().ReleaseJob(name);
  MP_RETURN_IF_ERROR(deleted);
  MP_RETURN_IF_ERROR(refused);
  MP_RETURN_IF_ERROR(claimed.status());
  v1::DeleteJobResponse response;
  response.set_checkpoints(static_cast<int64_t>(claimed->size()));
  for (const v1::Checkpoint& checkpoint : *claimed) {
    response.set_bytes(response.bytes() + checkpoint.bytes());
  }
  spdlog::info("{} is deleted, with {} checkpoints of {} bytes", name, response.checkpoints(),
               response.bytes());
  return response;
}

}  // namespace milepost::coordinator
