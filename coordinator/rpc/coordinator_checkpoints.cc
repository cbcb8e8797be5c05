// Which checkpoints go, and which stay for jobs that are to begin with them. What a job that is
// about to be stored begins with is being read until then (Coordinator::Keep): so who looks at the
// jobs and deletes under one lock misses none.
#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "common/error_details.h"
#include "common/status_macros.h"
#include "coordinator/rpc/coordinator.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/store.h"

namespace milepost::coordinator {

std::set<std::string> Coordinator::AwaitedLocked() const {
  std::set<std::string> names;
  for (const int64_t number : state_.active()) {
    if (std::string name = AwaitedCheckpoint(*state_.FindJob(number)); !name.empty()) {
      names.insert(std::move(name));
    }
  }
  return names;
}

void Coordinator::RetainCheckpoints(const std::string& job) {
  absl::ReaderMutexLock lock(&mutex_);
  RetainLocked(job);
}

void Coordinator::RetainLocked(const std::string& job) {
  const v1::JobRecord* record = state_.FindJob(JobNumber(job));
  if (record == nullptr) return;
  const v1::CheckpointSpec& spec = record->job().spec().checkpoint();
  const auto deleted = store_->checkpoints().Retain(
      job,
      {.keep_last = spec.keep_last(), .keep_every = spec.keep_every(), .awaited = AwaitedLocked()});
  if (deleted.ok()) return;
  spdlog::warn("old checkpoints of {} cannot be deleted: {}", job,
               std::string(deleted.status().message()));
}

void Coordinator::RetainReleased(const std::set<std::string>& checkpoints) {
  for (const std::string& name : checkpoints) {
    const auto owner = store_->checkpoints().Owner(name);
    if (owner.ok()) RetainCheckpoints(owner->job());
  }
}

CheckpointsChanged Coordinator::NewestCheckpoint(const std::string& job) {
  const auto newest = store_->checkpoints().Newest(job);
  return {job, newest ? newest->name() : "", newest ? newest->step() : 0};
}

absl::Status Coordinator::UpdateNewestCheckpoint(const std::string& job) {
  return Do(loop_.NoteNewest(job)).status();
}

absl::Status Coordinator::PublishCheckpoint(const std::string& job, int64_t generation,
                                            const std::function<absl::Status()>& publish) {
  std::optional<absl::Status> published;
  Entry entry = loop_.NoteNewest(job);
  entry.event = [&, note = std::move(entry.event)]() mutable -> std::optional<Event> {
    mutex_.AssertReaderHeld();
    published = CheckGenerationLocked(job, generation);
    if (published->ok()) published = publish();
    if (!published->ok()) return std::nullopt;
    return note();
  };
  const absl::Status noted = Do(std::move(entry)).status();
  if (!published.has_value()) return noted;  // the coordinator stops, or has too much to do
  if (published->ok() && !noted.ok()) {
    spdlog::warn("the newest checkpoint of {} cannot be noted yet: {}", job,
                 std::string(noted.message()));
  }
  return *published;
}

// What the job, should it be resumed, would begin with: kept while the answer lives. Null: nothing,
// or that is known to be kept.
absl::StatusOr<std::unique_ptr<CheckpointReader>> Coordinator::KeepForResuming(
    const std::string& job, const std::string& request_id) {
  v1::JobSpec spec;
  {
    absl::ReaderMutexLock lock(&mutex_);
    const v1::JobRecord* record = state_.FindJob(JobNumber(job));
    if (record == nullptr || HasResumed(*record, request_id)) return nullptr;
    const bool ended = IsTerminal(record->job().state());
    if (!ended || !record->job().latest_checkpoint().empty()) return nullptr;
    *spec.mutable_checkpoint() = record->job().spec().checkpoint();
  }
  const std::string& from = spec.checkpoint().resume_from();
  if (from.empty()) return nullptr;
  std::unique_ptr<CheckpointReader> kept = Keep(spec);
  const auto checkpoint = store_->checkpoints().Get(from);
  const bool there = checkpoint.ok() && !checkpoint->checkpoint().has_delete_time();
  if (kept != nullptr && there && !checkpoint->checkpoint().damaged()) return kept;
  return Refusal(v1::ERROR_REASON_START_CHECKPOINT_GONE, from,
                 absl::StrCat(job, " has no checkpoint of its own, and ", from,
                              ", which it would begin with, is ", there ? "damaged" : "gone",
                              ": submit a job that begins with another, or with none"));
}

}  // namespace milepost::coordinator
