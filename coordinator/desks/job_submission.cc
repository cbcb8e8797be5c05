// What users submit: checked and planned here, decided on in core/.
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/checksum.h"
#include "common/error_details.h"
#include "common/message_channel.h"
#include "common/spec/labels.h"
#include "common/spec/overrides.h"
#include "common/spec/scheduling.h"
#include "common/spec/sizes.h"
#include "common/spec/validate.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "coordinator/core/placement.h"
#include "coordinator/desks/checkpoint_desk.h"
#include "coordinator/desks/files_desk.h"
#include "coordinator/desks/job_desk.h"
#include "coordinator/security/principal.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/store.h"

namespace milepost::coordinator {
namespace {

// A worker gives it to each trainer in one message, with some paths.
constexpr size_t kMostSpecBytes = 96 << 10;
static_assert(kMostSpecBytes + (24 << 10) <= MessageChannel::kMaxBytes);
constexpr size_t kMostArrayBytes = 32 << 20;  // of its specs together
// That planning the jobs of an array may take: callers wait for a minute.
constexpr absl::Duration kLongestPlanning = absl::Seconds(30);

std::string NewUid() {
  std::random_device random;
  auto word = [&] { return static_cast<uint64_t>(random()) << 32 | random(); };
  return absl::StrFormat("%016x%016x", word(), word());
}

// What somebody else has sent with the same id is none of this project's. (No project's name has a
// slash.)
absl::StatusOr<std::string> ScopedRequestId(const std::string& id, const std::string& project) {
  if (id.size() > kMaxRequestIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("request_id: at most ", kMaxRequestIdBytes, " bytes"));
  }
  const bool scoped = project != kDefaultProject || absl::StrContains(id, '/');
  return id.empty() || !scoped ? id : absl::StrCat(project, "/", id);
}

// Of what a request asks for: what a client finds out about its own host may differ when it says
// the same again.
template <typename Request>
uint64_t RequestDigest(Request request) {
  request.clear_request_id();
  request.clear_validate_only();
  if constexpr (std::is_same_v<Request, v1::SubmitJobRequest>) {
    request.clear_rank_memory_bytes();
    request.clear_rank_threads();
  }
  std::string text = request.GetTypeName();
  {
    google::protobuf::io::StringOutputStream stream(&text);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);  // maps have no order
    request.SerializeToCodedStream(&coded);
  }
  return Xxh3(text);
}

// Which of the fields that a checkpoint's state depends on differ.
std::string StateDifference(const v1::JobSpec& from, const v1::JobSpec& to) {
  const auto differ = [](const google::protobuf::Message& a, const google::protobuf::Message& b) {
    return a.SerializeAsString() != b.SerializeAsString();
  };
  const v1::OptimizerSpec& before = from.train().optimizer();
  const v1::OptimizerSpec& after = to.train().optimizer();
  if (before.type() != after.type()) return "train.optimizer.type";
  if (before.state_dtype() != after.state_dtype()) return "train.optimizer.state_dtype";
  if (from.data().sequence_length() != to.data().sequence_length()) return "data.sequence_length";
  if (differ(from.model(), to.model())) return "model";
  return "the spec";
}

// `to` begins with the checkpoint, which a job of the spec `from` has made.
absl::Status CheckFits(const v1::CheckpointManifest& manifest, const v1::JobSpec& from,
                       const v1::JobSpec& to) {
  const std::string& name = manifest.checkpoint().name();
  const v1::TrainerState& state = manifest.state();
  if (to.has_script()) return absl::OkStatus();  // which alone knows
  if (to.train().seed() != state.seed()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "train.seed: ", name, " has the seed ", state.seed(), ", not ", to.train().seed(),
        ": with another one its order of samples could not go on; leave the seed as it is, or "
        "submit a job of its own"));
  }
  if (!state.spec_digest().empty() && state.spec_digest() != StateDigest(to)) {
    return absl::InvalidArgumentError(absl::StrCat(
        StateDifference(from, to), ": ", name, " does not have the tensors for it: a fork keeps ",
        "the model, train.optimizer.type and state_dtype, and data.sequence_length; to begin ",
        "another model with its weights export them and give train.init_from"));
  }
  if (to.train().steps() <= manifest.checkpoint().step()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "train.steps: ", name, " has made ", manifest.checkpoint().step(),
        " steps already, and the fork is to end after ", to.train().steps(), ": give more"));
  }
  return absl::OkStatus();
}

// Specs that are planned alike, as far as it is known, have the same.
std::string PlanKey(v1::JobSpec spec) {
  spec.clear_name();
  spec.mutable_train()->clear_seed();
  spec.mutable_train()->clear_schedule();
  spec.mutable_train()->mutable_optimizer()->clear_lr();
  spec.mutable_train()->mutable_optimizer()->clear_adamw_lr();
  return SpecDigest(spec);
}

absl::Status OfElement(size_t index, const absl::Status& status) {
  return Annotate(status, absl::StrCat("elements[", index, "]"));
}

}  // namespace

// The caller's word, or else what the workers that are there have told of their slots. A slot that
// told nothing may have any amount.
KnownPlace JobDesk::PlaceLocked(const KnownPlace& told, const v1::ResourceSpec& resources) {
  KnownPlace place = told;
  if (place.most_memory > 0) return place;
  bool all_told = true;
  bool all_hosts_told = true;
  for (const auto& [name, record] : state_.workers()) {
    const v1::Worker& worker = record.worker();
    if (worker.state() == v1::WORKER_STATE_DOWN || record.leaving() || worker.has_drain()) continue;
    if (!IsPool(PoolOf(worker), resources.pool())) continue;
    for (const v1::Slot& slot : worker.slots()) {
      const bool wanted =
          slot.device() == resources.device() && IsModel(slot.model(), resources.device_model());
      if (!wanted) continue;
      place.threads = std::max(place.threads, slot.cores());
      all_hosts_told = all_hosts_told && slot.host_memory_bytes() > 0;
      place.most_host_memory = std::max(place.most_host_memory, slot.host_memory_bytes());
      const int64_t bytes = slot.memory_bytes();
      all_told = all_told && bytes > 0;
      if (bytes <= 0) continue;
      place.least_memory = place.least_memory == 0 ? bytes : std::min(place.least_memory, bytes);
      place.most_memory = std::max(place.most_memory, bytes);
    }
  }
  if (!all_told) place.most_memory = 0;
  if (!all_hosts_told) place.most_host_memory = 0;
  return place;
}

absl::Status JobDesk::StillWantedBy(const Planner& planner) const {
  if (stopping_) return Stopping();
  if (planner.gone && planner.gone()) return absl::CancelledError("the client has gone");
  return absl::OkStatus();
}

absl::Status JobDesk::AdmitSpec(const KnownPlace& told, const Planner& planner,
                                JobSubmitted* event) {
  v1::JobSpec* spec = &event->spec;
  NormalizeJobSpec(spec);
  MP_RETURN_IF_ERROR(ValidateJobSpec(*spec));
  const std::string& from = spec->checkpoint().resume_from();
  if (!from.empty()) {
    auto checkpoint = store_->checkpoints().Get(from);
    if (!checkpoint.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("checkpoint.resume_from: ", std::string(checkpoint.status().message())));
    }
    const bool deleted = checkpoint->checkpoint().has_delete_time();
    if (deleted || checkpoint->checkpoint().damaged()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "checkpoint.resume_from: ", from,
          deleted ? " is deleted: restore it with `milepost checkpoint restore`" : " is damaged"));
    }
  }
  if (!options_.check_submission) return absl::OkStatus();
  KnownPlace place;
  {
    absl::ReaderMutexLock lock(&mutex_);
    place = PlaceLocked(told, spec->resources());
  }
  const auto still_wanted = [&] { return StillWantedBy(planner); };
  MP_ASSIGN_OR_RETURN(const uint64_t entered, planning_room_.Enter(planner.who, still_wanted));
  const absl::Time begin = SteadyNow();
  auto answer = options_.check_submission(*spec, place, still_wanted);
  if (planner.spent != nullptr) *planner.spent += SteadyNow() - begin;
  planning_room_.Leave(entered);
  MP_ASSIGN_OR_RETURN(CheckedSpec checked, std::move(answer));
  MP_RETURN_IF_ERROR(store_->checkpoints().CheckEverFits(checked.checkpoint_bytes));
  event->slot_bytes = checked.slot_bytes;
  event->sizes = std::move(checked.sizes);
  if (checked.choices.empty()) return absl::OkStatus();
  event->submitted_spec = std::exchange(event->spec, std::move(checked.spec));
  event->choices = std::move(checked.choices);
  return absl::OkStatus();
}

// ---- submitting ----

// It was not there, or about to go, when the job should have begun to keep it.
absl::Status CheckKept(const v1::JobSpec& spec, const CheckpointReader* kept) {
  const std::string& from = spec.checkpoint().resume_from();
  if (from.empty() || kept != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("checkpoint.resume_from: ", from, " was just being deleted: try again"));
}

absl::StatusOr<JobSubmitted> JobDesk::NewJob(
    const v1::JobSpec& spec, const std::string& project,
    const google::protobuf::Map<std::string, std::string>& labels) {
  MP_RETURN_IF_ERROR(CheckProject(project));
  MP_RETURN_IF_ERROR(CheckLabels(labels));
  if (const size_t bytes = spec.ByteSizeLong(); bytes > kMostSpecBytes) {
    return absl::InvalidArgumentError(absl::StrCat("spec: has ", bytes, " bytes in all; at most ",
                                                   kMostSpecBytes,
                                                   ": name fewer data sets, or by shorter paths"));
  }
  JobSubmitted event{.uid = NewUid(), .spec = spec, .project = project};
  event.labels.insert(labels.begin(), labels.end());
  return event;
}

// Said again: what was admitted then stays so, whatever workers there are now.
absl::StatusOr<std::optional<v1::Job>> JobDesk::KnownRequest(const std::string& request_id,
                                                             uint64_t digest, bool of_array,
                                                             bool validate_only) {
  if (request_id.empty() || validate_only) return std::nullopt;
  absl::ReaderMutexLock lock(&mutex_);
  const int64_t known = state_.FindRequest(request_id);
  if (known == 0) return std::nullopt;
  MP_RETURN_IF_ERROR(CheckSameRequest(state_.jobs().at(known), of_array, digest));
  return FindLocked(JobName(known));
}

absl::StatusOr<v1::Job> JobDesk::SubmitNew(const KnownPlace& told, bool validate_only,
                                           const Planner& planner, JobSubmitted event) {
  MP_RETURN_IF_ERROR(CheckRoomFor(event.project, 1, event.spec.ByteSizeLong()));
  const std::unique_ptr<CheckpointReader> kept = checkpoints_->Keep(event.spec);
  MP_RETURN_IF_ERROR(AdmitSpec(told, planner, &event));
  MP_RETURN_IF_ERROR(CheckKept(event.spec, kept.get()));
  if (!validate_only) {
    MP_RETURN_IF_ERROR(files_->CheckThere(event.spec));
    MP_ASSIGN_OR_RETURN(const std::string name, Do(std::move(event)));
    return Get(name);
  }
  v1::Job job;
  *job.mutable_spec() = event.spec;
  job.set_project(event.project);
  job.mutable_labels()->insert(event.labels.begin(), event.labels.end());
  if (event.forked_from) *job.mutable_forked_from() = *event.forked_from;
  if (event.submitted_spec) *job.mutable_submitted_spec() = *event.submitted_spec;
  job.mutable_choices()->Assign(event.choices.begin(), event.choices.end());
  return job;
}

absl::StatusOr<v1::Job> JobDesk::Submit(const v1::SubmitJobRequest& request,
                                        const Planner& planner) {
  const std::string project = request.project().empty() ? kDefaultProject : request.project();
  MP_ASSIGN_OR_RETURN(JobSubmitted event, NewJob(request.spec(), project, request.labels()));
  MP_ASSIGN_OR_RETURN(event.request_id, ScopedRequestId(request.request_id(), project));
  event.request_digest = RequestDigest(request);
  MP_ASSIGN_OR_RETURN(const std::optional<v1::Job> known,
                      KnownRequest(event.request_id, event.request_digest, /*of_array=*/false,
                                   request.validate_only()));
  if (known) return *known;
  const KnownPlace told = {request.rank_memory_bytes(), request.rank_memory_bytes(),
                           request.rank_threads()};
  return SubmitNew(told, request.validate_only(), planner, std::move(event));
}

// ---- forks ----

absl::StatusOr<v1::CheckpointManifest> JobDesk::ForkedCheckpoint(const std::string& source) {
  std::string name = source;
  if (JobNumber(source) != 0) {
    MP_RETURN_IF_ERROR(Get(source).status());
    const auto newest = store_->checkpoints().Newest(source);
    if (!newest.has_value()) {
      return Refusal(v1::ERROR_REASON_NO_CHECKPOINT, source,
                     absl::StrCat(source, " has no checkpoint to fork from yet"));
    }
    name = newest->name();
  } else if (CheckpointNumber(source) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "source: expected a checkpoint or a job such as checkpoints/4 or jobs/7, not '",
        source.substr(0, 64), "'"));
  }
  MP_ASSIGN_OR_RETURN(v1::CheckpointManifest manifest, store_->checkpoints().Get(name));
  if (manifest.checkpoint().has_delete_time()) {
    return Refusal(
        v1::ERROR_REASON_CHECKPOINT_DELETED, name,
        absl::StrCat(name, " is deleted: `milepost checkpoint restore ", name, "` has it back"));
  }
  if (!manifest.checkpoint().damaged()) return manifest;
  return Refusal(v1::ERROR_REASON_CHECKPOINT_DAMAGED, name,
                 absl::StrCat(name, " is damaged: fork from another checkpoint of its job"));
}

absl::StatusOr<v1::Job> JobDesk::Fork(const v1::ForkJobRequest& request, const std::string& project,
                                      const SpecCheck& check, const Planner& planner) {
  MP_ASSIGN_OR_RETURN(const std::string id, ScopedRequestId(request.request_id(), project));
  MP_ASSIGN_OR_RETURN(
      const std::optional<v1::Job> known,
      KnownRequest(id, RequestDigest(request), /*of_array=*/false, request.validate_only()));
  if (known) return *known;
  MP_ASSIGN_OR_RETURN(const v1::CheckpointManifest manifest, ForkedCheckpoint(request.source()));
  const v1::Checkpoint& checkpoint = manifest.checkpoint();
  MP_ASSIGN_OR_RETURN(const v1::Job job, Get(checkpoint.job()));
  const v1::JobSpec& from = job.has_submitted_spec() ? job.submitted_spec() : job.spec();
  v1::JobSpec spec = from;
  // What the source waited for, and began with, is behind it.
  spec.mutable_scheduling()->clear_depends_on();
  if (spec.has_train() && !KeepsInitialWeights(spec)) spec.mutable_train()->clear_init_from();
  spec.mutable_checkpoint()->clear_resume_from();
  MP_RETURN_IF_ERROR(ApplyOverrides(request.overrides(), "overrides", &spec));
  if (spec.has_train() && !KeepsInitialWeights(spec) &&
      spec.train().init_from() == from.train().init_from()) {
    spec.mutable_train()->clear_init_from();  // of what the source alone needs
  }
  if (!spec.checkpoint().resume_from().empty()) {
    return absl::InvalidArgumentError(
        "overrides: checkpoint.resume_from: a fork begins with its source: name that instead");
  }
  spec.mutable_checkpoint()->set_resume_from(checkpoint.name());
  NormalizeJobSpec(&spec);
  MP_RETURN_IF_ERROR(check(spec));
  MP_RETURN_IF_ERROR(CheckFits(manifest, from, spec));
  google::protobuf::Map<std::string, std::string> labels = job.labels();
  for (const auto& [key, value] : request.labels()) labels[key] = value;
  MP_ASSIGN_OR_RETURN(JobSubmitted event, NewJob(spec, project, labels));
  event.request_id = id;
  event.request_digest = RequestDigest(request);
  v1::ForkOrigin& origin = event.forked_from.emplace();
  origin.set_job(job.name());
  origin.set_checkpoint(checkpoint.name());
  origin.set_step(checkpoint.step());
  *origin.mutable_overrides() = request.overrides();
  return SubmitNew({}, request.validate_only(), planner, std::move(event));
}

// ---- arrays ----

absl::Status JobDesk::AdmitArray(const Planner& planner, std::vector<JobSubmitted>* jobs) {
  absl::Duration spent;
  Planner timed = planner;
  timed.spent = &spent;
  std::map<std::string, const JobSubmitted*> planned;
  for (size_t i = 0; i < jobs->size(); ++i) {
    MP_RETURN_IF_ERROR(StillWantedBy(planner));
    JobSubmitted& job = (*jobs)[i];
    NormalizeJobSpec(&job.spec);
    const std::string key = PlanKey(job.spec);
    const auto twin = planned.find(key);
    const bool same = twin != planned.end() && !twin->second->submitted_spec.has_value();
    absl::Status status = same ? ValidateJobSpec(job.spec) : AdmitSpec({}, timed, &job);
    if (!status.ok()) return OfElement(i, status);
    if (same) {
      job.slot_bytes = twin->second->slot_bytes;
      job.sizes = twin->second->sizes;
    } else {
      planned.emplace(key, &job);
    }
    const v1::DeviceKind device = job.spec.resources().device();
    if (device != jobs->front().spec.resources().device()) {
      return OfElement(i, absl::InvalidArgumentError(
                              "resources.device: all jobs of an array want the same kind"));
    }
    if (spent < kLongestPlanning) continue;
    return Refusal(v1::ERROR_REASON_PLANNING_TOO_LONG, "elements",
                   absl::StrCat("planning took more than ", absl::FormatDuration(kLongestPlanning),
                                " for the first ", i + 1, " of ", jobs->size(),
                                " elements: submit them as several arrays"));
  }
  return absl::OkStatus();
}

// `kept`: what its jobs begin with, for as long as it lives.
absl::StatusOr<JobArraySubmitted> JobDesk::NewArray(
    const v1::SubmitJobArrayRequest& request, const std::string& project, const SpecCheck& check,
    std::map<std::string, std::unique_ptr<CheckpointReader>>* kept) {
  const int size = request.elements_size();
  if (const size_t bytes = static_cast<size_t>(size) * request.spec().ByteSizeLong();
      bytes > kMostArrayBytes) {
    return absl::InvalidArgumentError(absl::StrCat("elements: ", size, " jobs of such a spec have ",
                                                   bytes, " bytes; at most ", kMostArrayBytes,
                                                   ": make several arrays, or a shorter spec"));
  }
  JobArraySubmitted event;
  for (int i = 0; i < size; ++i) {
    const v1::ArrayElement& element = request.elements(i);
    MP_ASSIGN_OR_RETURN(JobSubmitted job, NewJob(request.spec(), project, request.labels()));
    absl::Status status = ApplyOverrides(element.overrides(), "overrides", &job.spec);
    if (status.ok()) status = check(job.spec);
    if (!status.ok()) return OfElement(static_cast<size_t>(i), status);
    const auto [from, added] = kept->try_emplace(job.spec.checkpoint().resume_from());
    if (added) from->second = checkpoints_->Keep(job.spec);
    v1::ArrayMembership& array = job.array.emplace();
    array.set_index(i);
    array.set_max_parallel(request.max_parallel());
    *array.mutable_overrides() = element.overrides();
    event.jobs.push_back(std::move(job));
  }
  return event;
}

absl::StatusOr<v1::SubmitJobArrayResponse> JobDesk::SubmitArray(
    const v1::SubmitJobArrayRequest& request, const SpecCheck& check, const Planner& planner) {
  const std::string project = request.project().empty() ? kDefaultProject : request.project();
  const int size = request.elements_size();
  if (size < 1 || size > kMostJobsOfArray) {
    return absl::InvalidArgumentError(
        absl::StrCat("elements: must be 1 to ", kMostJobsOfArray, ", not ", size));
  }
  if (request.max_parallel() < 0) {
    return absl::InvalidArgumentError("max_parallel: must be at least 0 (all)");
  }
  MP_ASSIGN_OR_RETURN(const std::string id, ScopedRequestId(request.request_id(), project));
  MP_ASSIGN_OR_RETURN(
      std::optional<v1::Job> first,
      KnownRequest(id, RequestDigest(request), /*of_array=*/true, request.validate_only()));
  if (!first) {
    const auto jobs = static_cast<size_t>(size);
    MP_RETURN_IF_ERROR(CheckRoomFor(project, jobs, jobs * request.spec().ByteSizeLong()));
    std::map<std::string, std::unique_ptr<CheckpointReader>> kept;
    MP_ASSIGN_OR_RETURN(JobArraySubmitted event, NewArray(request, project, check, &kept));
    event.request_id = id;
    event.request_digest = RequestDigest(request);
    MP_RETURN_IF_ERROR(AdmitArray(planner, &event.jobs));
    for (const JobSubmitted& job : event.jobs) {
      MP_RETURN_IF_ERROR(CheckKept(job.spec, kept.at(job.spec.checkpoint().resume_from()).get()));
    }
    if (request.validate_only()) return v1::SubmitJobArrayResponse();
    for (const JobSubmitted& job : event.jobs) MP_RETURN_IF_ERROR(files_->CheckThere(job.spec));
    MP_ASSIGN_OR_RETURN(const std::string name, Do(std::move(event)));
    MP_ASSIGN_OR_RETURN(first, Get(name));
  }
  v1::SubmitJobArrayResponse response;
  response.set_array(first->array().name());
  for (int i = 0; i < first->array().size(); ++i) {
    response.add_jobs(JobName(JobNumber(first->name()) + i));
  }
  return response;
}

}  // namespace milepost::coordinator
